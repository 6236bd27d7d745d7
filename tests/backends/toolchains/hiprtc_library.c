/* Stands for libhiprtc.so: records the calls that arrive, and answers with the bytes of a file.
 *
 * Environment: HIPRTC_CALLS the file that calls are appended to, HIPRTC_CODE the code object's file,
 * HIPRTC_FAILS "call:status" for a call that does not succeed. -DWITHOUT_CODE leaves out hiprtcGetCode. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *LOG = "unit.hip:2:3: error: use of undeclared identifier 'nobody'\n1 error generated\n";

static int answer(const char *call) {
    const char *fails = getenv("HIPRTC_FAILS");
    FILE *file = fopen(getenv("HIPRTC_CALLS"), "a");
    fprintf(file, "%s\n", call);
    fclose(file);
    if (fails && !strncmp(fails, call, strlen(call)) && fails[strlen(call)] == ':')
        return atoi(fails + strlen(call) + 1);
    return 0;
}

static void say(const char *what, const char *text) {
    FILE *file = fopen(getenv("HIPRTC_CALLS"), "a");
    fprintf(file, "  %s %s\n", what, text);
    fclose(file);
}

static size_t code(char *target) {
    FILE *file = fopen(getenv("HIPRTC_CODE"), "rb");
    static char bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    if (target) memcpy(target, bytes, size);
    return size;
}

int hiprtcVersion(int *major, int *minor) {
    *major = 9, *minor = 0;
    return answer("hiprtcVersion");
}

int hiprtcCreateProgram(void **program, const char *text, const char *name, int count, const char **headers,
                        const char **names) {
    const int status = answer("hiprtcCreateProgram");
    say(name, text);
    for (int i = 0; i < count; ++i) say(names[i], headers[i]);
    *program = malloc(1);
    return status;
}

int hiprtcCompileProgram(void *program, int count, const char **options) {
    const int status = answer("hiprtcCompileProgram");
    for (int i = 0; i < count; ++i) say("option", options[i]);
    return status;
}

int hiprtcGetProgramLogSize(void *program, size_t *size) {
    *size = strlen(LOG) + 1;
    return answer("hiprtcGetProgramLogSize");
}

int hiprtcGetProgramLog(void *program, char *log) {
    strcpy(log, LOG);
    return answer("hiprtcGetProgramLog");
}

int hiprtcGetCodeSize(void *program, size_t *size) {
    *size = code(NULL);
    return answer("hiprtcGetCodeSize");
}

#ifndef WITHOUT_CODE
int hiprtcGetCode(void *program, char *target) {
    code(target);
    return answer("hiprtcGetCode");
}
#endif

int hiprtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    return answer("hiprtcDestroyProgram");
}
