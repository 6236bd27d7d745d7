// The HIP runtime on the host: one device, whose memory is the host's and whose kernels are shared libraries that
// the emulator compiled (backends/kernels/emulator). A stream runs what is queued at once; a capture keeps it.
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hip_types.h"
#include "shim.h"

namespace {

using Work = std::function<const char*()>;

// Work runs in the thread that records the events, so the processor time of that thread is the device's own:
// whatever else runs on the host does not lengthen it.
double processor_milliseconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

struct Stream {
    std::vector<Work>* captured = nullptr;
    hipError_t failed = hipSuccess;  // by a launch; a wait tells of it
};
struct Event {
    double milliseconds = 0;
};
struct Graph {
    std::vector<Work> work;
};
struct Module {
    void* library;
};
using Kernel = const char* (*)(const void*, const unsigned*, int, unsigned long long, int);
struct Function {
    Kernel kernel;
    size_t argument_bytes;
};
struct Allocation {
    void* pages;
    size_t mapped, size;
};

std::mutex lock;
std::map<char*, Allocation> allocations;
size_t allocated = 0;

size_t memory() { return static_cast<size_t>(shim::number("GEMMTUNE_SHIM_MEMORY", 1ll << 31)); }

hipError_t answer(const char* call) { return static_cast<hipError_t>(shim::fault(call)); }

int devices() {
    const char* const visible = std::getenv("HIP_VISIBLE_DEVICES");
    const int all = static_cast<int>(shim::number("GEMMTUNE_SHIM_DEVICES", 1));
    if (!visible) return all;
    int count = 0;
    std::stringstream list(visible);
    for (std::string one; std::getline(list, one, ',');) {
        if (one.empty() || one.find_first_not_of("0123456789") != std::string::npos || std::stoi(one) >= all) break;
        ++count;
    }
    return count;
}

hipError_t queue(void* stream, Work work) {
    Stream* const to = static_cast<Stream*>(stream);
    if (!to) return hipErrorInvalidHandle;
    if (to->captured) {
        to->captured->push_back(std::move(work));
        return hipSuccess;
    }
    if (work()) to->failed = hipErrorLaunchFailure;
    return hipSuccess;
}

}  // namespace

#define CALL(NAME)                                                   \
    if (const hipError_t wrong = answer(#NAME); wrong != hipSuccess) \
    return wrong

extern "C" {

int gemmtune_shim_queue(void* stream, std::function<const char*()>* work) { return queue(stream, *work); }

// ---- the device

hipError_t hipInit(unsigned) { return answer("hipInit"); }
hipError_t hipGetDeviceCount(int* count) {
    *count = 0;
    CALL(hipGetDeviceCount);
    *count = devices();
    return *count ? hipSuccess : hipErrorNoDevice;
}
hipError_t hipSetDevice(int device) {
    CALL(hipSetDevice);
    return device >= 0 && device < devices() ? hipSuccess : hipErrorInvalidDevice;
}
hipError_t hipGetDevice(int* device) {
    *device = 0;
    return answer("hipGetDevice");
}
hipError_t hipRuntimeGetVersion(int* version) {
    *version = static_cast<int>(shim::number("GEMMTUNE_SHIM_HIP_VERSION", 70253211));
    return answer("hipRuntimeGetVersion");
}
hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* found, int device) {
    CALL(hipGetDeviceProperties);
    if (device < 0 || device >= devices()) return hipErrorInvalidDevice;
    std::memset(found, 0, sizeof *found);
    const std::string arch = shim::setting("GEMMTUNE_SHIM_ARCH", "gfx942:sramecc+:xnack-");
    const std::string name = shim::setting("GEMMTUNE_SHIM_NAME", "HIP on host");
    const std::string uuid = shim::setting("GEMMTUNE_SHIM_UUID", "0123456789abcde") + std::to_string(device);
    std::strncpy(found->name, name.c_str(), sizeof found->name - 1);
    std::memcpy(found->uuid, uuid.data(), std::min(uuid.size(), sizeof found->uuid));
    std::strncpy(found->gcnArchName, arch.c_str(), sizeof found->gcnArchName - 1);
    found->totalGlobalMem = memory();
    found->sharedMemPerBlock = found->sharedMemPerMultiprocessor = 64 << 10;
    found->warpSize = arch.compare(0, 4, "gfx9") == 0 ? 64 : 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->multiProcessorCount = static_cast<int>(shim::number("GEMMTUNE_SHIM_CUS", 4));
    found->l2CacheSize = static_cast<int>(shim::number("GEMMTUNE_SHIM_CACHE", 256 << 10));
    found->clockRate = 2100000;
    found->pciBusID = 5 + device;
    return hipSuccess;
}
hipError_t hipMemGetInfo(size_t* available, size_t* total) {
    const std::lock_guard<std::mutex> held(lock);
    *total = memory(), *available = memory() - allocated;
    return answer("hipMemGetInfo");
}

// ---- memory

// It ends, but for 15 bytes at most, where a page begins that nothing may touch.
hipError_t hipMalloc(void** address, size_t size) {
    *address = nullptr;
    CALL(hipMalloc);
    const std::lock_guard<std::mutex> held(lock);
    if (size > memory() - allocated) return hipErrorOutOfMemory;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), used = (size + page - 1) / page * page;
    void* const pages = mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return hipErrorOutOfMemory;
    mprotect(static_cast<char*>(pages) + used, page, PROT_NONE);
    const size_t unit = size >= page ? 256 : 16;
    char* const begin = static_cast<char*>(pages) + used - (size + unit - 1) / unit * unit;
    allocations[begin] = Allocation{pages, used + page, size};
    allocated += size;
    *address = begin;
    return hipSuccess;
}
hipError_t hipFree(void* address) {
    CALL(hipFree);
    const std::lock_guard<std::mutex> held(lock);
    const auto found = allocations.find(static_cast<char*>(address));
    if (found == allocations.end()) return address ? hipErrorInvalidValue : hipSuccess;
    munmap(found->second.pages, found->second.mapped);
    allocated -= found->second.size;
    allocations.erase(found);
    return hipSuccess;
}
hipError_t hipMemcpyHtoDAsync(void* target, const void* source, size_t size, void*) {
    CALL(hipMemcpyHtoDAsync);
    std::memcpy(target, source, size);
    return hipSuccess;
}
hipError_t hipMemcpyDtoHAsync(void* target, void* source, size_t size, void*) {
    CALL(hipMemcpyDtoHAsync);
    std::memcpy(target, source, size);
    return hipSuccess;
}
hipError_t hipMemcpyDtoDAsync(void* target, void* source, size_t size, void* stream) {
    CALL(hipMemcpyDtoDAsync);
    return queue(stream, [=]() -> const char* { return std::memmove(target, source, size), nullptr; });
}
hipError_t hipMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                            size_t width, size_t height, int, void* stream) {
    CALL(hipMemcpy2DAsync);
    return queue(stream, [=]() -> const char* {
        for (size_t row = 0; row < height; ++row)
            std::memmove(static_cast<char*>(target) + row * target_pitch,
                         static_cast<const char*>(source) + row * source_pitch, width);
        return nullptr;
    });
}
hipError_t hipMemsetD8Async(void* address, unsigned char value, size_t size, void* stream) {
    CALL(hipMemsetD8Async);
    return queue(stream, [=]() -> const char* { return std::memset(address, value, size), nullptr; });
}

// ---- streams and events

hipError_t hipStreamCreateWithFlags(void** stream, unsigned) {
    CALL(hipStreamCreateWithFlags);
    *stream = new Stream;
    return hipSuccess;
}
hipError_t hipStreamDestroy(void* stream) {
    delete static_cast<Stream*>(stream);
    return hipSuccess;
}
hipError_t hipStreamSynchronize(void* stream) {
    CALL(hipStreamSynchronize);
    return static_cast<Stream*>(stream)->failed;
}
hipError_t hipEventCreateWithFlags(void** event, unsigned) {
    CALL(hipEventCreateWithFlags);
    *event = new Event;
    return hipSuccess;
}
hipError_t hipEventDestroy(void* event) {
    delete static_cast<Event*>(event);
    return answer("hipEventDestroy");
}
hipError_t hipEventRecord(void* event, void*) {
    CALL(hipEventRecord);
    static_cast<Event*>(event)->milliseconds = processor_milliseconds();
    return hipSuccess;
}
hipError_t hipEventSynchronize(void*) { return answer("hipEventSynchronize"); }
hipError_t hipEventElapsedTime(float* milliseconds, void* begin, void* end) {
    CALL(hipEventElapsedTime);
    const double took = static_cast<Event*>(end)->milliseconds - static_cast<Event*>(begin)->milliseconds;
    *milliseconds = static_cast<float>(took);
    return hipSuccess;
}

// ---- graphs

hipError_t hipStreamBeginCapture(void* stream, int) {
    CALL(hipStreamBeginCapture);
    static_cast<Stream*>(stream)->captured = new std::vector<Work>;
    return hipSuccess;
}
hipError_t hipStreamEndCapture(void* stream, void** graph) {
    *graph = nullptr;
    Stream* const from = static_cast<Stream*>(stream);
    if (!from->captured) return hipErrorStreamCaptureUnmatched;
    const std::unique_ptr<std::vector<Work>> captured(from->captured);
    from->captured = nullptr;
    CALL(hipStreamEndCapture);
    *graph = new Graph{std::move(*captured)};
    return hipSuccess;
}
hipError_t hipGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    CALL(hipGraphInstantiateWithFlags);
    *executable = new Graph(*static_cast<Graph*>(graph));
    return hipSuccess;
}
hipError_t hipGraphUpload(void*, void*) { return answer("hipGraphUpload"); }
hipError_t hipGraphLaunch(void* executable, void* stream) {
    CALL(hipGraphLaunch);
    for (const Work& work : static_cast<Graph*>(executable)->work)
        if (const hipError_t wrong = queue(stream, work); wrong != hipSuccess) return wrong;
    return hipSuccess;
}
hipError_t hipGraphExecDestroy(void* executable) {
    delete static_cast<Graph*>(executable);
    return answer("hipGraphExecDestroy");
}
hipError_t hipGraphDestroy(void* graph) {
    delete static_cast<Graph*>(graph);
    return answer("hipGraphDestroy");
}

// ---- modules and kernels

// An image is a shared library of the emulator's, as long as its section headers say; nothing else is one of this
// device's code objects.
hipError_t hipModuleLoadData(void** module, const void* image) {
    CALL(hipModuleLoadData);
    const char* const elf = static_cast<const char*>(image);
    if (std::memcmp(elf, "\177ELF\2\1", 6) != 0) return hipErrorInvalidImage;
    uint64_t sections;
    uint16_t size, count, machine;
    std::memcpy(&machine, elf + 18, 2);
    std::memcpy(&sections, elf + 40, 8), std::memcpy(&size, elf + 58, 2), std::memcpy(&count, elf + 60, 2);
    if (machine != 62) return hipErrorInvalidImage;  // EM_X86_64
    char path[] = "/tmp/gemmtune-hip-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) return hipErrorOutOfMemory;
    const size_t length = sections + size_t{size} * count;
    const bool whole = write(file, elf, length) == static_cast<ssize_t>(length);
    close(file);
    void* const library = whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    if (!library) return hipErrorInvalidImage;
    *module = new Module{library};
    return hipSuccess;
}
hipError_t hipModuleUnload(void* module) {
    delete static_cast<Module*>(module);  // the library stays: launches in graphs may be of it
    return answer("hipModuleUnload");
}
hipError_t hipModuleGetFunction(void** function, void* module, const char* name) {
    CALL(hipModuleGetFunction);
    void* const library = static_cast<Module*>(module)->library;
    void* const found = dlsym(library, ("launch_" + std::string(name)).c_str());
    void* const size = dlsym(library, ("argument_bytes_" + std::string(name)).c_str());
    if (!found || !size) return hipErrorNotFound;
    *function = new Function{reinterpret_cast<Kernel>(found), *static_cast<unsigned long long*>(size)};
    return hipSuccess;
}
hipError_t hipFuncGetAttribute(int* value, int attribute, void*) {
    CALL(hipFuncGetAttribute);
    *value = attribute == 4 ? 64 : 0;  // HIP_FUNC_ATTRIBUTE_NUM_REGS
    return hipSuccess;
}
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t shared) {
    CALL(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor);
    const size_t by_threads = 2048u / static_cast<size_t>(threads), by_shared = shared ? (64u << 10) / shared : 32;
    *blocks = static_cast<int>(std::max<size_t>(1, std::min(by_threads, by_shared)));
    return hipSuccess;
}
hipError_t hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                                 unsigned, unsigned shared, void* stream, void** parameters, void** extra) {
    CALL(hipModuleLaunchKernel);
    if (extra || !parameters || !threads || threads > 1024 || !x || !y || !z) return hipErrorInvalidValue;
    if (static_cast<uint64_t>(x) * threads >= 1ull << 32) return hipErrorInvalidValue;
    const Function& called = *static_cast<Function*>(function);
    const char* const argument = static_cast<const char*>(parameters[0]);
    // A copy: the caller's argument may be gone when a graph is launched.
    const std::vector<char> copied(argument, argument + called.argument_bytes);
    return queue(stream, [=, kernel = called.kernel]() -> const char* {
        const unsigned grid[3] = {x, y, z};
        return kernel(copied.data(), grid, static_cast<int>(threads), shared, 0);
    });
}

}  // extern "C"
