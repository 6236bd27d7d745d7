// What HIP's interface says of types and numbers, as far as these libraries answer it (hip_runtime_api.h of
// ROCm 6 and 7: hipDeviceProp_tR0600, hipError_t, hipFunction_attribute).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum hipError_t {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidImage = 200,
    hipErrorInvalidHandle = 400,
    hipErrorNotFound = 500,
    hipErrorLaunchFailure = 719,
    hipErrorStreamCaptureUnmatched = 903,
};

struct hipDeviceProp_tR0600 {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap;
    int multiProcessorCount;
    int kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode;
    int textures[40];  // maxTexture1D ... maxSurfaceCubemapLayered
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled;
    int pciBusID, pciDeviceID, pciDomainID;
    int tccDriver, asyncEngineCount, unifiedAddressing;
    int memoryClockRate, memoryBusWidth, l2CacheSize;
    int persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
    int flags[3];  // streamPrioritiesSupported ... localL1CacheSupported
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int more[11];  // managedMemory ... cooperativeMultiDeviceLaunch
    size_t sharedMemPerBlockOptin;
    int pageable[2];
    int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int last[13];  // hostRegisterSupported ... unifiedFunctionPointers
    int reserved[63];
    int hipReserved[32];
    char gcnArchName[256];
    size_t maxSharedMemoryPerMultiProcessor;
    int clockInstructionRate;
    unsigned arch;  // hipDeviceArch_t, a word of bits
    unsigned *hdpMemFlushCntl, *hdpRegFlushCntl;
    int cooperative[4];
    int isLargeBar, asicRevision;
};

}  // extern "C"

static_assert(sizeof(hipDeviceProp_tR0600) == 1472, "as long as ROCm's");
