// A HIP runtime without a GPU, for the genuine hipBLASLt and rocBLAS. It implements the functions that the two import
// and those that the backend calls when it opens a device. It reports one device. Device memory is host memory.
// Modules load and launches succeed without doing anything.
//
// It is preloaded, so that its symbols take precedence over those of the genuine libamdhip64, and it is also the
// libamdhip64.so of the ROCM_PATH that the backend opens.
//
// GEMMTUNE_FAKE_ARCH    gcnArchName, such as gfx90a:sramecc+:xnack-
// GEMMTUNE_FAKE_CUS     multiProcessorCount
// GEMMTUNE_FAKE_TRACE   a file to which calls are appended that an enumeration should not make
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../on_host/hip_types.h"

namespace {

// Memory, LDS and caches are those of no product, and large enough for every solution.
constexpr size_t MEMORY = 64ull << 30;
constexpr int LDS = 64 << 10, L2 = 8 << 20, CLOCK_KHZ = 1700000;

std::string arch() {
    const char* const name = std::getenv("GEMMTUNE_FAKE_ARCH");
    return name ? name : "gfx90a:sramecc+:xnack-";
}
int cu_count() {
    const char* const count = std::getenv("GEMMTUNE_FAKE_CUS");
    return count ? std::atoi(count) : 104;
}
int wavefront() { return arch().compare(0, 4, "gfx9") == 0 ? 64 : 32; }

void trace(const char* call, long long value = 0) {
    const char* const path = std::getenv("GEMMTUNE_FAKE_TRACE");
    if (!path) return;
    if (std::FILE* const file = std::fopen(path, "a")) {
        std::fprintf(file, "%s %lld\n", call, value);
        std::fclose(file);
    }
}

hipError_t allocate(void** address, size_t size) {
    *address = std::aligned_alloc(256, (size + 255) / 256 * 256);
    return *address || !size ? hipSuccess : hipErrorOutOfMemory;
}
// Copies are made: a library may read back values that it wrote.
hipError_t copy(void* target, const void* source, size_t size) {
    if (size) std::memmove(target, source, size);
    return hipSuccess;
}

int handle;  // its address is the handle of every stream, event, module, kernel and pool

}  // namespace

extern "C" {

// ---- the device

hipError_t hipInit(unsigned) { return hipSuccess; }
hipError_t hipGetDeviceCount(int* count) {
    *count = 1;
    return hipSuccess;
}
hipError_t hipSetDevice(int device) { return device ? hipErrorInvalidDevice : hipSuccess; }
hipError_t hipGetDevice(int* device) {
    *device = 0;
    return hipSuccess;
}
hipError_t hipRuntimeGetVersion(int* version) {
    *version = 60443484;  // as Debian's libamdhip64-6 6.4.3 answers
    return hipSuccess;
}
hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
hipError_t hipDeviceSynchronize() { return hipSuccess; }

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* found, int device) {
    if (device) return hipErrorInvalidDevice;
    std::memset(found, 0, sizeof *found);
    std::strcpy(found->name, "fake HIP device");
    std::memcpy(found->uuid, "0123456789abcdef", sizeof found->uuid);
    std::strncpy(found->gcnArchName, arch().c_str(), sizeof found->gcnArchName - 1);
    const std::string number = arch().substr(3, arch().find(':') - 3);  // 90a of gfx90a, 1100 of gfx1100
    found->major = std::stoi(number.substr(0, number.size() - 2));
    found->minor = number[number.size() - 2] - '0';
    found->totalGlobalMem = MEMORY;
    found->sharedMemPerBlock = found->sharedMemPerMultiprocessor = LDS;
    found->maxSharedMemoryPerMultiProcessor = found->sharedMemPerBlockOptin = LDS;
    found->warpSize = wavefront();
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    for (int axis = 0; axis < 3; ++axis) found->maxThreadsDim[axis] = 1024, found->maxGridSize[axis] = 0x7fffffff;
    found->multiProcessorCount = cu_count();
    found->clockRate = CLOCK_KHZ;
    found->memoryClockRate = 1600000;
    found->memoryBusWidth = 4096;
    found->l2CacheSize = L2;
    found->concurrentKernels = 1;
    found->pciBusID = 3;
    return hipSuccess;
}
// The cases are values of hipDeviceAttribute_t.
hipError_t hipDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 5: *value = CLOCK_KHZ; break;
        case 19: *value = L2; break;
        case 56: *value = 1024; break;
        case 57: *value = 2048; break;
        case 63:
        case 10015: *value = cu_count(); break;
        case 74:
        case 75:
        case 76:
        case 10002: *value = LDS; break;
        case 87: *value = wavefront(); break;
        case 10018: *value = 1; break;  // XCCs
        case 88: *value = 1; break;     // memory pools
        default: *value = 0; trace("hipDeviceGetAttribute", attribute);
    }
    return hipSuccess;
}
hipError_t hipMemGetInfo(size_t* available, size_t* total) {
    *available = *total = MEMORY;
    return hipSuccess;
}

const char* hipGetErrorName(hipError_t status) { return status == hipSuccess ? "hipSuccess" : "an error of the fake runtime"; }
const char* hipGetErrorString(hipError_t status) { return hipGetErrorName(status); }
hipError_t hipGetLastError() { return hipSuccess; }
hipError_t hipPeekAtLastError() { return hipSuccess; }

// ---- memory

hipError_t hipMalloc(void** address, size_t size) {
    trace("hipMalloc", static_cast<long long>(size));
    return allocate(address, size);
}
hipError_t hipHostMalloc(void** address, size_t size, unsigned) { return allocate(address, size); }
hipError_t hipMallocAsync(void** address, size_t size, void*) { return allocate(address, size); }
hipError_t hipFree(void* address) {
    trace("hipFree");
    std::free(address);
    return hipSuccess;
}
hipError_t hipFreeAsync(void* address, void*) { return hipFree(address); }
hipError_t hipMemcpy(void* target, const void* source, size_t size, int) { return copy(target, source, size); }
hipError_t hipMemcpyAsync(void* target, const void* source, size_t size, int, void*) { return copy(target, source, size); }
hipError_t hipMemcpy2D(void*, size_t, const void*, size_t, size_t, size_t, int) {
    trace("hipMemcpy2D");
    return hipSuccess;
}
hipError_t hipMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, int, void*) {
    trace("hipMemcpy2DAsync");
    return hipSuccess;
}
hipError_t hipMemset(void* address, int value, size_t size) {
    std::memset(address, value, size);
    return hipSuccess;
}
hipError_t hipMemsetAsync(void* address, int value, size_t size, void*) { return hipMemset(address, value, size); }
hipError_t hipMemsetD8Async(void* address, unsigned char value, size_t size, void*) {
    return hipMemset(address, value, size);
}
hipError_t hipDeviceGetDefaultMemPool(void** pool, int) {
    *pool = &handle;
    return hipSuccess;
}
hipError_t hipMemPoolTrimTo(void*, size_t) { return hipSuccess; }
// hipPointerAttribute_t: type, device, device pointer, host pointer, managed, flags.
struct Pointer {
    int type, device;
    void *on_device, *on_host;
    int managed;
    unsigned flags;
};
hipError_t hipPointerGetAttributes(Pointer* found, const void* address) {
    *found = Pointer{2, 0, const_cast<void*>(address), nullptr, 0, 0};  // hipMemoryTypeDevice
    return hipSuccess;
}

// ---- streams and events

hipError_t hipStreamCreateWithFlags(void** stream, unsigned) {
    *stream = &handle;
    return hipSuccess;
}
hipError_t hipStreamDestroy(void*) { return hipSuccess; }
hipError_t hipStreamSynchronize(void*) { return hipSuccess; }
hipError_t hipStreamQuery(void*) { return hipSuccess; }
hipError_t hipStreamIsCapturing(void*, int* status) {
    *status = 0;
    return hipSuccess;
}
hipError_t hipEventRecord(void*, void*) { return hipSuccess; }

// ---- modules and launches: they succeed without doing anything

hipError_t hipModuleLoad(void** module, const char*) {
    trace("hipModuleLoad");
    *module = &handle;
    return hipSuccess;
}
hipError_t hipModuleLoadData(void** module, const void*) {
    trace("hipModuleLoadData");
    *module = &handle;
    return hipSuccess;
}
hipError_t hipModuleUnload(void*) { return hipSuccess; }
hipError_t hipModuleGetFunction(void** function, void*, const char*) {
    *function = &handle;
    return hipSuccess;
}
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
    *blocks = 1;
    return hipSuccess;
}
hipError_t hipExtModuleLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, void*,
                                    void**, void**, void*, void*, unsigned) {
    trace("hipExtModuleLaunchKernel");
    return hipSuccess;
}
struct Extent {
    unsigned x, y, z;
};
hipError_t hipLaunchKernel(const void*, Extent, Extent, void**, size_t, void*) {
    trace("hipLaunchKernel");
    return hipSuccess;
}
// Registration of the kernels in rocBLAS's own binary.
void** __hipRegisterFatBinary(const void*) {
    static void* registered = &handle;
    return &registered;
}
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*, int*) {}
void __hipUnregisterFatBinary(void**) {}
hipError_t __hipPushCallConfiguration(Extent, Extent, size_t, void*) { return hipSuccess; }
hipError_t __hipPopCallConfiguration(Extent* grid, Extent* block, size_t* shared, void** stream) {
    *grid = *block = Extent{1, 1, 1}, *shared = 0, *stream = nullptr;
    return hipSuccess;
}

}  // extern "C"
