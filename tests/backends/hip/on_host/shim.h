// What the libraries of this folder share: settings from the environment, faults on demand, and work that is
// queued on a stream of the runtime's (amdhip64.cpp).
#pragma once

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <sys/stat.h>

namespace shim {

inline std::string setting(const char* name, const std::string& otherwise) {
    const char* const found = std::getenv(name);
    return found ? found : otherwise;
}

inline long long number(const char* name, long long otherwise) {
    const char* const found = std::getenv(name);
    return found ? std::atoll(found) : otherwise;
}

// The status that a call is to answer by GEMMTUNE_SHIM_FAULTS, a file of lines "call status"; 0 without one. It
// is read at every call, so that a test may write it while a worker runs.
inline int fault(const char* call) {
    const char* const path = std::getenv("GEMMTUNE_SHIM_FAULTS");
    struct stat found;
    if (!path || stat(path, &found) || !found.st_size) return 0;
    std::ifstream file(path);
    std::string name;
    int status;
    while (file >> name >> status)
        if (name == call) return status;
    return 0;
}

}  // namespace shim

// Runs work in the order of a stream: at once, or when the graph that is being captured is launched. A result
// other than null is a launch failure.
extern "C" int gemmtune_shim_queue(void* stream, std::function<const char*()>* work);
