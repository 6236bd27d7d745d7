// A GPU driver of the tests: libcuda, or libamdhip64 if STUB_HIP is defined. Its devices are host memory. It
// records every launch, fails calls on demand, and runs kernels of its own format.
//
// A "binary" is a text: "GEMMSTUB", then lines
//   kernel ENTRY gemm|copy
//   field NAME PARAMETER OFFSET BYTES     where the argument block has a value (BYTES: 4 or 8; float: -4)
//   constant NAME VALUE
// gemm: D[m,n] = alpha op(A)[m,k] op(B)[k,n], fp32, column-major: m n k lda ldb ldd trans_a trans_b alpha a b d.
// A field NAME.map is a tensor map, whose address is the value NAME. copy: `bytes` from `source` to `target`.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[32]; int parameter, offset, bytes; double constant; } Field;
typedef struct { char entry[64], kind[16]; Field fields[32]; int count, shared_limit; } Kernel;
typedef struct { Kernel kernels[4]; int count; } Module;
typedef struct {
  char entry[64];
  uint32_t grid[3], block[3], shared;
  uint64_t stream, context;
  int32_t programmatic, shared_limit;
} Record;

static Record records[1024];
static int launches, loads, encodings, version = 13000, count = 2;
static char failing[64];
static int failing_status;
static __thread uint64_t stack[8];
static __thread int depth;

// ---- what tests ask and set
int stub_launches(void) { return launches; }
int stub_loads(void) { return loads; }
int stub_encodings(void) { return encodings; }
const Record *stub_record(int index) { return &records[index]; }
void stub_version(int number) { version = number; }
void stub_count(int number) { count = number; }
// Calls of this name answer the status, until another name is given.
void stub_fail(const char *name, int status) {
  snprintf(failing, sizeof failing, "%s", name);
  failing_status = status;
}
void stub_reset(void) {
  launches = loads = encodings = 0;
  version = 13000;
  count = 2;
  failing[0] = 0;
}
uint64_t stub_current(void) { return depth ? stack[depth - 1] : 0; }
void stub_forget_current(void) { depth = 0; }

#define CHECK(name) \
  if (strcmp(failing, name) == 0) return failing_status
#ifdef STUB_HIP
enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
#define CALL(cuda, hip) hip
#else
enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
#define CALL(cuda, hip) cuda
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define BEGIN(cuda, hip) CHECK(TEXT(CALL(cuda, hip)))

// ---- kernels
static const uint8_t *place(const Field *f, void **parameters) {
  return (const uint8_t *)parameters[f->parameter] + f->offset;
}

static const Field *find(const Kernel *kernel, const char *name) {
  for (int i = 0; i < kernel->count; ++i)
    if (strcmp(kernel->fields[i].name, name) == 0) return &kernel->fields[i];
  return 0;
}

static double number(const Kernel *kernel, void **parameters, const char *name) {
  const Field *f = find(kernel, name);
  if (!f) abort();
  int32_t word; int64_t wide; float real;
  if (f->bytes == 4) { memcpy(&word, place(f, parameters), 4); return word; }
  if (f->bytes == 8) { memcpy(&wide, place(f, parameters), 8); return (double)wide; }
  if (f->bytes == -4) { memcpy(&real, place(f, parameters), 4); return real; }
  return f->constant;
}

static uint64_t address(const Kernel *kernel, void **parameters, const char *name) {
  char mapped[40];
  snprintf(mapped, sizeof mapped, "%s.map", name);
  const Field *f = find(kernel, mapped);
  f = f ? f : find(kernel, name);
  if (!f) abort();
  uint64_t value;
  memcpy(&value, place(f, parameters), 8);
  return value;
}

static void gemm(const Kernel *kernel, void **parameters) {
#define N(name) (int64_t)number(kernel, parameters, name)
  int64_t m = N("m"), n = N("n"), k = N("k"), lda = N("lda"), ldb = N("ldb"), ldd = N("ldd");
  int64_t ta = N("trans_a"), tb = N("trans_b");
  float alpha = (float)number(kernel, parameters, "alpha");
  const float *a = (const float *)address(kernel, parameters, "a");
  const float *b = (const float *)address(kernel, parameters, "b");
  float *d = (float *)address(kernel, parameters, "d");
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += (ta ? a[i * lda + p] : a[p * lda + i]) * (tb ? b[p * ldb + j] : b[j * ldb + p]);
      d[j * ldd + i] = alpha * sum;
    }
}

static int launch(Kernel *kernel, const uint32_t *sizes, uint32_t shared, void *stream, void **parameters, int programmatic) {
  if (!stub_current()) return INVALID_CONTEXT;
  Record *r = &records[launches++ % 1024];
  memset(r, 0, sizeof *r);
  snprintf(r->entry, sizeof r->entry, "%s", kernel->entry);
  memcpy(r->grid, sizes, 12);
  memcpy(r->block, sizes + 3, 12);
  r->shared = shared;
  r->stream = (uint64_t)stream;
  r->context = stub_current();
  r->programmatic = programmatic;
  r->shared_limit = kernel->shared_limit;
  if (strcmp(kernel->kind, "gemm") == 0) gemm(kernel, parameters);
  if (strcmp(kernel->kind, "copy") == 0)
    memcpy((void *)address(kernel, parameters, "target"), (void *)address(kernel, parameters, "source"),
           (size_t)number(kernel, parameters, "bytes"));
  return 0;
}

// ---- modules
int CALL(cuModuleLoadData, hipModuleLoadData)(void **module, const char *image) {
  BEGIN(cuModuleLoadData, hipModuleLoadData);
  if (!stub_current()) return INVALID_CONTEXT;
  if (strncmp(image, "GEMMSTUB\n", 9)) return INVALID_IMAGE;
  Module *made = calloc(1, sizeof *made);
  Kernel *kernel = 0;
  for (const char *line = image; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    Field f = {0};
    Kernel next = {0};
    if (sscanf(line, "kernel %63s %15s", next.entry, next.kind) == 2) {
      kernel = &made->kernels[made->count++];
      *kernel = next;
    } else if (sscanf(line, "field %31s %d %d %d", f.name, &f.parameter, &f.offset, &f.bytes) == 4 ||
               sscanf(line, "constant %31s %lf", f.name, &f.constant) == 2) {
      kernel->fields[kernel->count++] = f;
    }
  }
  ++loads;
  *module = made;
  return 0;
}

int CALL(cuModuleGetFunction, hipModuleGetFunction)(void **function, Module *module, const char *entry) {
  BEGIN(cuModuleGetFunction, hipModuleGetFunction);
  for (int i = 0; i < module->count; ++i)
    if (strcmp(module->kernels[i].entry, entry) == 0) {
      *function = &module->kernels[i];
      return 0;
    }
  return NOT_FOUND;
}

// ---- memory and streams: all is done at once
int CALL(cuMemAlloc_v2, hipMalloc)(uint64_t *found, size_t size) {
  BEGIN(cuMemAlloc_v2, hipMalloc);
  if (!stub_current()) return INVALID_CONTEXT;
  if (size > (1u << 30)) return NO_MEMORY;
  *found = (uint64_t)aligned_alloc(256, (size + 255) / 256 * 256);
  return 0;
}
int CALL(cuMemFree_v2, hipFree)(uint64_t at) { free((void *)at); return 0; }
int CALL(cuMemcpyHtoD_v2, hipMemcpyHtoD)(uint64_t to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int CALL(cuMemcpyDtoH_v2, hipMemcpyDtoH)(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int CALL(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags) { *stream = (void *)(0x500 + (uint64_t)flags); return 0; }
int CALL(cuStreamSynchronize, hipStreamSynchronize)(void *stream) { (void)stream; return 0; }
int CALL(cuCtxSynchronize, hipDeviceSynchronize)(void) { return 0; }
int CALL(cuInit, hipInit)(unsigned flags) { BEGIN(cuInit, hipInit); (void)flags; return 0; }
int CALL(cuDeviceGetCount, hipGetDeviceCount)(int *found) { *found = count; return 0; }

#ifndef STUB_HIP
// ---- CUDA's own
int cuDriverGetVersion(int *found) { *found = version; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, device ? "NVIDIA Other 2" : "NVIDIA Stub (R) 1"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  CHECK("cuDevicePrimaryCtxRetain");
  *context = (void *)(0x1000 + (uint64_t)device);
  return 0;
}
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = (uint64_t)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)stack[--depth]; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)stub_current(); return 0; }
int cuCtxSetCurrent(void *context) { depth = 1; stack[0] = (uint64_t)context; return 0; }
int cuFuncSetAttribute(Kernel *kernel, int attribute, int value) {
  CHECK("cuFuncSetAttribute");
  if (attribute != 8) return INVALID_VALUE;
  kernel->shared_limit = value;
  return 0;
}
int cuFuncLoad(Kernel *kernel) { (void)kernel; return 0; }

typedef struct { int id; char pad[4]; union { char pad[64]; int allowed; } value; } Attribute;
typedef struct { uint32_t grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
int cuLaunchKernelEx(const Config *config, Kernel *kernel, void **parameters, void **extra) {
  CHECK("cuLaunchKernelEx");
  int programmatic = 0;
  for (unsigned i = 0; i < config->count; ++i) {
    if (config->attributes[i].id != 6) return INVALID_VALUE;
    programmatic = config->attributes[i].value.allowed;
  }
  if (extra) return INVALID_VALUE;
  return launch(kernel, config->grid, config->shared, config->stream, parameters, programmatic);
}

// The map: its address, rank, data type and swizzle, then sizes, strides, box and element strides.
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *at, const uint64_t *sizes, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2, int fill) {
  CHECK("cuTensorMapEncodeTiled");
  if ((uint64_t)map % 64 || rank > 3 || interleave || fill || l2 != 3 || (uint64_t)at % 16) return INVALID_VALUE;
  ++encodings;
  memset(map, 0, 128);
  uint8_t *out = map;
  memcpy(out, &at, 8);
  int words[3] = {(int)rank, type, swizzle};
  memcpy(out + 8, words, 12);
  memcpy(out + 24, sizes, 8 * rank);
  memcpy(out + 48, strides, 8 * (rank - 1));
  memcpy(out + 64, box, 4 * rank);
  memcpy(out + 76, steps, 4 * rank);
  return 0;
}
int cuGetErrorName(int status, const char **name) {
  *name = status == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : status == 200 ? "CUDA_ERROR_INVALID_IMAGE" : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
        : status == 500 ? "CUDA_ERROR_NOT_FOUND" : status == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : 0;
  return *name ? 0 : INVALID_VALUE;
}
#else
// ---- HIP's own
static __thread int device_of_thread;
int hipGetDevice(int *device) { *device = device_of_thread; return 0; }
int hipSetDevice(int device) { device_of_thread = device; depth = 1; stack[0] = 0x1000 + (uint64_t)device; return 0; }
int hipGetDevicePropertiesR0600(char *found, int device) {
  memset(found, 0, 1472);
  strcpy(found, device ? "AMD Other" : "AMD Instinct Stub");
  strcpy(found + 1160, "gfx942:sramecc+:xnack-");
  int units = 304;
  memcpy(found + 388, &units, 4);
  return 0;
}
int hipModuleLaunchKernel(Kernel *kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                          uint32_t shared, void *stream, void **parameters, void **extra) {
  CHECK("hipModuleLaunchKernel");
  uint32_t sizes[6] = {gx, gy, gz, bx, by, bz};
  if (extra) return INVALID_VALUE;
  if (!stub_current()) hipSetDevice(0);  // a thread has a device
  return launch(kernel, sizes, shared, stream, parameters, 0);
}
const char *hipGetErrorName(int status) {
  return status == 200 ? "hipErrorInvalidImage" : status == 2 ? "hipErrorOutOfMemory" : status == 500 ? "hipErrorNotFound"
       : status == 719 ? "hipErrorLaunchFailure" : "hipErrorUnknown";
}
#endif
