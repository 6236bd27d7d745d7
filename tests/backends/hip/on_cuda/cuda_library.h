// Functions of NVIDIA's libraries, looked up at run time: nothing of CUDA is needed to compile this folder.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace shim {

inline void* library(const char* variable, const char* otherwise) {
    const char* const named = std::getenv(variable);
    void* const found = dlopen(named ? named : otherwise, RTLD_NOW | RTLD_LOCAL);
    if (!found) std::fprintf(stderr, "%s\n", dlerror());
    return found;
}

template <typename FUNCTION>
FUNCTION* look_up(void* library, const char* name) {
    void* const found = library ? dlsym(library, name) : nullptr;
    if (!found) std::fprintf(stderr, "%s is missing\n", name), std::abort();
    return reinterpret_cast<FUNCTION*>(found);
}

}  // namespace shim

// CALL(result, name, types): a static pointer to the function.
#define CUDA_FUNCTION(LIBRARY, RESULT, NAME, SYMBOL, ...) \
    RESULT (*const NAME)(__VA_ARGS__) = shim::look_up<RESULT(__VA_ARGS__)>(LIBRARY, SYMBOL)
