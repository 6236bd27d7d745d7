// hipRTC on NVRTC: the same text is compiled for the NVIDIA GPU's architecture, with the words of portable_cuda.h,
// whose headers are found through GEMMTUNE_SHIM_HEADERS.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../on_host/shim.h"
#include "cuda_library.h"

namespace {

using Program = void*;

struct Nvrtc {
    void* const at = shim::library("GEMMTUNE_SHIM_NVRTC", "libnvrtc.so.13");
    CUDA_FUNCTION(at, int, version, "nvrtcVersion", int*, int*);
    CUDA_FUNCTION(at, int, create, "nvrtcCreateProgram", Program*, const char*, const char*, int, const char* const*,
                  const char* const*);
    CUDA_FUNCTION(at, int, compile, "nvrtcCompileProgram", Program, int, const char* const*);
    CUDA_FUNCTION(at, int, log_size, "nvrtcGetProgramLogSize", Program, size_t*);
    CUDA_FUNCTION(at, int, log, "nvrtcGetProgramLog", Program, char*);
    CUDA_FUNCTION(at, int, code_size, "nvrtcGetCUBINSize", Program, size_t*);
    CUDA_FUNCTION(at, int, code, "nvrtcGetCUBIN", Program, char*);
    CUDA_FUNCTION(at, int, destroy, "nvrtcDestroyProgram", Program*);
};
const Nvrtc& nvrtc() {
    static const Nvrtc found;
    return found;
}

}  // namespace

extern "C" {

int hiprtcVersion(int* major, int* minor) { return nvrtc().version(major, minor); }
const char* hiprtcGetErrorString(int) { return "an error of NVRTC"; }
int hiprtcCreateProgram(Program* program, const char* source, const char* name, int, const char**, const char**) {
    // The headers that come with the program are those of the HIP target: the folder has both targets'.
    return nvrtc().create(program, source, name, 0, nullptr, nullptr);
}
int hiprtcCompileProgram(Program program, int count, const char** options) {
    std::vector<std::string> own = {
        "--std=c++17", "--gpu-architecture=" + shim::setting("GEMMTUNE_SHIM_CUDA_ARCH", "sm_90")};
    std::stringstream folders(shim::setting("GEMMTUNE_SHIM_HEADERS", "."));
    for (std::string folder; std::getline(folders, folder, ':');) own.push_back("-I" + folder);
    for (int i = 0; i < count; ++i)
        if (std::strncmp(options[i], "-D", 2) == 0) own.push_back(options[i]);
    std::vector<const char*> given;
    for (const std::string& one : own) given.push_back(one.c_str());
    return nvrtc().compile(program, static_cast<int>(given.size()), given.data());
}
int hiprtcGetProgramLogSize(Program program, size_t* size) { return nvrtc().log_size(program, size); }
int hiprtcGetProgramLog(Program program, char* log) { return nvrtc().log(program, log); }
int hiprtcGetCodeSize(Program program, size_t* size) { return nvrtc().code_size(program, size); }
int hiprtcGetCode(Program program, char* code) { return nvrtc().code(program, code); }
int hiprtcDestroyProgram(Program* program) { return nvrtc().destroy(program); }

}  // extern "C"
