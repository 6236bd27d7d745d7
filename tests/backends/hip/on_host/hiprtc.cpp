// hipRTC on the host: a program is compiled by g++ for the emulator (-DGEMMTUNE_HOST), whose headers are found
// through GEMMTUNE_SHIM_HEADERS; what comes out is a shared library that amdhip64.cpp loads.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "shim.h"

namespace {

struct Program {
    std::string source, name, log, code;
    std::vector<std::pair<std::string, std::string>> headers;
};

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& text) {
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
        mkdir(path.substr(0, at).c_str(), 0755);
    std::ofstream(path, std::ios::binary) << text;
}

enum { kSuccess = 0, kInvalidInput = 3, kInvalidOption = 5, kCompilation = 6 };

}  // namespace

extern "C" {

int hiprtcVersion(int* major, int* minor) {
    *major = 9, *minor = 0;
    return shim::fault("hiprtcVersion");
}
const char* hiprtcGetErrorString(int) { return "an error of hipRTC on the host"; }

int hiprtcCreateProgram(void** program, const char* source, const char* name, int count, const char** texts,
                        const char** names) {
    if (const int wrong = shim::fault("hiprtcCreateProgram")) return wrong;
    auto made = std::make_unique<Program>();
    made->source = source, made->name = name ? name : "unit";
    for (int i = 0; i < count; ++i) made->headers.emplace_back(names[i], texts[i]);
    *program = made.release();
    return kSuccess;
}

int hiprtcCompileProgram(void* program, int count, const char** options) {
    Program& unit = *static_cast<Program*>(program);
    if (const int wrong = shim::fault("hiprtcCompileProgram")) {
        unit.log = "error: a fault on demand";
        return wrong;
    }
    char folder[] = "/tmp/gemmtune-hiprtc-XXXXXX";
    if (!mkdtemp(folder)) return kInvalidInput;
    const std::string root = folder;
    for (const auto& [name, text] : unit.headers) write(root + "/" + name, text);
    write(root + "/unit.cpp", unit.source);
    // What inputs and references are made by runs over all of an operand: faster, though it compiles longer.
    const bool often = unit.source.find("\"reference.h\"") != std::string::npos;
    std::string command = std::string("g++ -std=c++17 ") + (often ? "-O2 -march=native" : "-Og") + " -w -fPIC -shared -DGEMMTUNE_HOST -I" + root;
    command += " -I" + shim::setting("GEMMTUNE_SHIM_HEADERS", ".");
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i];
        if (option.compare(0, 2, "-D") == 0) command += " '" + option + "'";
        else if (option.compare(0, 15, "--offload-arch=") != 0 && option[0] != '-') return kInvalidOption;
    }
    command += " " + root + "/unit.cpp -o " + root + "/unit.so 2>" + root + "/log";
    const int status = std::system(command.c_str());
    unit.log = read(root + "/log");
    if (status == 0) unit.code = read(root + "/unit.so");
    [[maybe_unused]] const int gone = std::system(("rm -rf " + root).c_str());
    return status == 0 ? kSuccess : kCompilation;
}

int hiprtcGetProgramLogSize(void* program, size_t* size) {
    *size = static_cast<Program*>(program)->log.size() + 1;
    return kSuccess;
}
int hiprtcGetProgramLog(void* program, char* log) {
    const std::string& from = static_cast<Program*>(program)->log;
    std::memcpy(log, from.c_str(), from.size() + 1);
    return kSuccess;
}
int hiprtcGetCodeSize(void* program, size_t* size) {
    *size = static_cast<Program*>(program)->code.size();
    return shim::fault("hiprtcGetCodeSize");
}
int hiprtcGetCode(void* program, char* code) {
    const std::string& from = static_cast<Program*>(program)->code;
    std::memcpy(code, from.data(), from.size());
    return kSuccess;
}
int hiprtcDestroyProgram(void** program) {
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return kSuccess;
}

}  // extern "C"
