// The HIP runtime on an NVIDIA GPU: each call is the CUDA driver's of the same meaning. Real streams, events, graphs,
// memory and modules; what is proven is the host's part of the HIP backend, never an AMD GPU.
#include <algorithm>
#include <cstring>
#include <string>

#include "../on_host/hip_types.h"
#include "../on_host/shim.h"
#include "cuda_library.h"

namespace {

using Handle = void*;
using Pointer = unsigned long long;

struct Cuda {
    void* const at = shim::library("GEMMTUNE_SHIM_CUDA", "libcuda.so.1");
    CUDA_FUNCTION(at, int, init, "cuInit", unsigned);
    CUDA_FUNCTION(at, int, count, "cuDeviceGetCount", int*);
    CUDA_FUNCTION(at, int, device, "cuDeviceGet", int*, int);
    CUDA_FUNCTION(at, int, attribute, "cuDeviceGetAttribute", int*, int, int);
    CUDA_FUNCTION(at, int, total, "cuDeviceTotalMem_v2", size_t*, int);
    CUDA_FUNCTION(at, int, uuid, "cuDeviceGetUuid_v2", void*, int);
    CUDA_FUNCTION(at, int, retain, "cuDevicePrimaryCtxRetain", Handle*, int);
    CUDA_FUNCTION(at, int, current, "cuCtxSetCurrent", Handle);
    CUDA_FUNCTION(at, int, info, "cuMemGetInfo_v2", size_t*, size_t*);
    CUDA_FUNCTION(at, int, allocate, "cuMemAlloc_v2", Pointer*, size_t);
    CUDA_FUNCTION(at, int, free, "cuMemFree_v2", Pointer);
    CUDA_FUNCTION(at, int, to_device, "cuMemcpyHtoDAsync_v2", Pointer, const void*, size_t, Handle);
    CUDA_FUNCTION(at, int, to_host, "cuMemcpyDtoHAsync_v2", void*, Pointer, size_t, Handle);
    CUDA_FUNCTION(at, int, copy, "cuMemcpyDtoDAsync_v2", Pointer, Pointer, size_t, Handle);
    CUDA_FUNCTION(at, int, fill, "cuMemsetD8Async", Pointer, unsigned char, size_t, Handle);
    CUDA_FUNCTION(at, int, make_stream, "cuStreamCreate", Handle*, unsigned);
    CUDA_FUNCTION(at, int, wait, "cuStreamSynchronize", Handle);
    CUDA_FUNCTION(at, int, make_event, "cuEventCreate", Handle*, unsigned);
    CUDA_FUNCTION(at, int, end_event, "cuEventDestroy_v2", Handle);
    CUDA_FUNCTION(at, int, record, "cuEventRecord", Handle, Handle);
    CUDA_FUNCTION(at, int, wait_event, "cuEventSynchronize", Handle);
    CUDA_FUNCTION(at, int, elapsed, "cuEventElapsedTime", float*, Handle, Handle);
    CUDA_FUNCTION(at, int, begin_capture, "cuStreamBeginCapture_v2", Handle, int);
    CUDA_FUNCTION(at, int, end_capture, "cuStreamEndCapture", Handle, Handle*);
    CUDA_FUNCTION(at, int, instantiate, "cuGraphInstantiateWithFlags", Handle*, Handle, unsigned long long);
    CUDA_FUNCTION(at, int, upload, "cuGraphUpload", Handle, Handle);
    CUDA_FUNCTION(at, int, launch_graph, "cuGraphLaunch", Handle, Handle);
    CUDA_FUNCTION(at, int, end_executable, "cuGraphExecDestroy", Handle);
    CUDA_FUNCTION(at, int, end_graph, "cuGraphDestroy", Handle);
    CUDA_FUNCTION(at, int, load, "cuModuleLoadData", Handle*, const void*);
    CUDA_FUNCTION(at, int, unload, "cuModuleUnload", Handle);
    CUDA_FUNCTION(at, int, function, "cuModuleGetFunction", Handle*, Handle, const char*);
    CUDA_FUNCTION(at, int, get_attribute, "cuFuncGetAttribute", int*, int, Handle);
    CUDA_FUNCTION(at, int, set_attribute, "cuFuncSetAttribute", Handle, int, int);
    CUDA_FUNCTION(at, int, occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", int*, Handle, int, size_t);
    CUDA_FUNCTION(at, int, launch, "cuLaunchKernel", Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, Handle, void**, void**);
};
const Cuda& cuda() {
    static const Cuda found;
    return found;
}

// The numbers are nearly the same: hipError_t was made after them.
hipError_t hip(int status) { return static_cast<hipError_t>(status); }

// What a launch may ask of shared memory without an attribute; above it the kernel is allowed all that it asks for.
constexpr unsigned kPlainShared = 48u << 10;
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
enum { kMultiprocessors = 16, kL2 = 38, kBus = 33, kPciDevice = 34, kDomain = 50 };

int attribute(int which, int device) {
    int value = 0;
    cuda().attribute(&value, which, device);
    return value;
}

Pointer address(const void* at) { return reinterpret_cast<Pointer>(at); }

}  // namespace

extern "C" {

hipError_t hipInit(unsigned flags) { return hip(cuda().init(flags)); }
hipError_t hipGetDeviceCount(int* count) {
    *count = 0;
    if (const int status = cuda().init(0)) return hip(status);
    return hip(cuda().count(count));
}
hipError_t hipSetDevice(int index) {
    int device = 0;
    Handle context = nullptr;
    if (const int status = cuda().init(0)) return hip(status);
    if (const int status = cuda().device(&device, index)) return hip(status);
    if (const int status = cuda().retain(&context, device)) return hip(status);
    return hip(cuda().current(context));
}
hipError_t hipGetDevice(int* device) {
    *device = 0;
    return hipSuccess;
}
hipError_t hipRuntimeGetVersion(int* version) {
    *version = 70253211;
    return hipSuccess;
}
hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* found, int index) {
    int device = 0;
    if (const int status = cuda().init(0)) return hip(status);
    if (const int status = cuda().device(&device, index)) return hip(status);
    std::memset(found, 0, sizeof *found);
    std::strcpy(found->name, "HIP on CUDA");
    // An architecture with warps of 32, as the GPU beneath has.
    std::strcpy(found->gcnArchName, shim::setting("GEMMTUNE_SHIM_ARCH", "gfx1100").c_str());
    cuda().uuid(found->uuid, device), cuda().total(&found->totalGlobalMem, device);
    found->sharedMemPerBlock = found->sharedMemPerMultiprocessor = 64 << 10;
    found->warpSize = 32, found->maxThreadsPerBlock = 1024, found->maxThreadsPerMultiProcessor = 2048;
    found->multiProcessorCount = attribute(kMultiprocessors, device), found->l2CacheSize = attribute(kL2, device);
    found->pciBusID = attribute(kBus, device), found->pciDeviceID = attribute(kPciDevice, device);
    found->pciDomainID = attribute(kDomain, device);
    return hipSuccess;
}
hipError_t hipMemGetInfo(size_t* available, size_t* total) { return hip(cuda().info(available, total)); }

hipError_t hipMalloc(void** at, size_t size) {
    Pointer made = 0;
    const int status = cuda().allocate(&made, size);
    *at = reinterpret_cast<void*>(made);
    return hip(status);
}
hipError_t hipFree(void* at) { return hip(cuda().free(address(at))); }
hipError_t hipMemcpyHtoDAsync(void* target, const void* source, size_t size, Handle stream) {
    return hip(cuda().to_device(address(target), source, size, stream));
}
hipError_t hipMemcpyDtoHAsync(void* target, void* source, size_t size, Handle stream) {
    return hip(cuda().to_host(target, address(source), size, stream));
}
hipError_t hipMemcpyDtoDAsync(void* target, void* source, size_t size, Handle stream) {
    return hip(cuda().copy(address(target), address(source), size, stream));
}
hipError_t hipMemsetD8Async(void* at, unsigned char value, size_t size, Handle stream) {
    return hip(cuda().fill(address(at), value, size, stream));
}

hipError_t hipStreamCreateWithFlags(Handle* stream, unsigned flags) { return hip(cuda().make_stream(stream, flags)); }
hipError_t hipStreamSynchronize(Handle stream) { return hip(cuda().wait(stream)); }
hipError_t hipEventCreateWithFlags(Handle* event, unsigned flags) { return hip(cuda().make_event(event, flags)); }
hipError_t hipEventDestroy(Handle event) { return hip(cuda().end_event(event)); }
hipError_t hipEventRecord(Handle event, Handle stream) { return hip(cuda().record(event, stream)); }
hipError_t hipEventSynchronize(Handle event) { return hip(cuda().wait_event(event)); }
hipError_t hipEventElapsedTime(float* milliseconds, Handle begin, Handle end) {
    return hip(cuda().elapsed(milliseconds, begin, end));
}

hipError_t hipStreamBeginCapture(Handle stream, int mode) { return hip(cuda().begin_capture(stream, mode)); }
hipError_t hipStreamEndCapture(Handle stream, Handle* graph) {
    *graph = nullptr;
    return hip(cuda().end_capture(stream, graph));
}
hipError_t hipGraphInstantiateWithFlags(Handle* executable, Handle graph, unsigned long long flags) {
    return hip(cuda().instantiate(executable, graph, flags));
}
hipError_t hipGraphUpload(Handle executable, Handle stream) { return hip(cuda().upload(executable, stream)); }
hipError_t hipGraphLaunch(Handle executable, Handle stream) { return hip(cuda().launch_graph(executable, stream)); }
hipError_t hipGraphExecDestroy(Handle executable) { return hip(cuda().end_executable(executable)); }
hipError_t hipGraphDestroy(Handle graph) { return hip(cuda().end_graph(graph)); }

hipError_t hipModuleLoadData(Handle* module, const void* image) { return hip(cuda().load(module, image)); }
hipError_t hipModuleUnload(Handle module) { return hip(cuda().unload(module)); }
hipError_t hipModuleGetFunction(Handle* function, Handle module, const char* name) {
    return hip(cuda().function(function, module, name));
}
hipError_t hipFuncGetAttribute(int* value, int attribute, Handle function) {
    return hip(cuda().get_attribute(value, attribute, function));
}
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle function, int threads, size_t shared) {
    return hip(cuda().occupancy(blocks, function, threads, shared));
}
hipError_t hipModuleLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                                 unsigned threads_z, unsigned shared, Handle stream, void** parameters, void** extra) {
    if (shared > kPlainShared)
        if (const int status = cuda().set_attribute(function, kMaxDynamicShared, static_cast<int>(shared))) return hip(status);
    return hip(cuda().launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra));
}

}  // extern "C"
