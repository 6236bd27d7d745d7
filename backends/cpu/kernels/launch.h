// The launch code that kernel families share: argument checks, workspace size and alignment, the
// teams' barriers, and the exported functions.
//
// A family is a class with
//   Accumulator             type of the sums
//   supports(args)          whether the family can run these (valid) arguments
//   Plan(args)              blocks, the thread grid, teams(), and bytes() of workspace
//   work(args, plan, barriers, workspace, thread)
#ifndef GEMMTUNE_LAUNCH_H
#define GEMMTUNE_LAUNCH_H

#include <new>
#include <type_traits>

#include "abi.h"
#include "epilogue.h"
#include "threads.h"

namespace gemmtune {

template <typename Family>
class Launcher {
  using Plan = typename Family::Plan;

  struct Context {
    const GemmArgs *args;
    const Plan *plan;
    char *workspace;
    std::atomic<bool> missing;
  };

 public:
  // Workspace size in bytes; 0 for arguments that run() rejects.
  static int64_t workspace(const GemmArgs &args) {
    return check(args) == GEMMTUNE_OK ? bytes(Plan(args)) : 0;
  }

  static int32_t run(const GemmArgs &args) {
    const int32_t error = check(args);
    if (error != GEMMTUNE_OK) return error;
    if (!args.a || !args.b || !args.d || !args.workspace || (args.beta != 0 && !args.c) ||
        (args.bias_axis != 0 && !args.bias) || (args.threads > 1 && !args.parallel))
      return GEMMTUNE_NULL_POINTER;
    const Plan plan(args);
    if (args.workspace_bytes < bytes(plan)) return GEMMTUNE_SMALL_WORKSPACE;
    const auto address = reinterpret_cast<uintptr_t>(args.workspace);
    char *workspace = static_cast<char *>(args.workspace) + (-address & 63);
    Context context = {&args, &plan, workspace, {false}};
    for (int64_t i = 0; i < plan.teams(); ++i) new (workspace + i * sizeof(Barrier)) Barrier;
    if (args.threads == 1) {
      task(0, 1, &context);
    } else {
      args.parallel(args.threads, task, &context);
    }
    return context.missing ? GEMMTUNE_THREADS_MISSING : GEMMTUNE_OK;
  }

 private:
  static int32_t check(const GemmArgs &args) {
    using Acc = typename Family::Accumulator;
    if (args.m < 1 || args.n < 1 || args.k < 1 || args.batch < 1 || args.threads < 1 ||
        args.mc < 1 || args.nc < 1 || args.kc < 1)
      return GEMMTUNE_BAD_SIZE;
    if ((args.trans_a | args.trans_b) >> 1 != 0 || args.bias_axis < 0 || args.bias_axis > 2 ||
        args.activation < kIdentity || args.activation > kSilu)
      return GEMMTUNE_BAD_OPTION;
    if (args.lda < (args.trans_a ? args.k : args.m) || args.ldd < args.m ||
        args.ldb < (args.trans_b ? args.n : args.k) || (args.beta != 0 && args.ldc < args.m))
      return GEMMTUNE_BAD_SIZE;
    if (std::is_integral_v<Acc> && (args.activation > kRelu || args.alpha != Acc(args.alpha) ||
                                    args.beta != Acc(args.beta)))
      return GEMMTUNE_UNSUPPORTED;
    return Family::supports(args) ? GEMMTUNE_OK : GEMMTUNE_UNSUPPORTED;
  }

  static int64_t bytes(const Plan &plan) {  // 64 bytes are for alignment
    return 64 + plan.teams() * int64_t(sizeof(Barrier)) + plan.bytes();
  }

  static void task(int32_t thread, int32_t threads, void *pointer) {
    Context &context = *static_cast<Context *>(pointer);
    if (threads != context.args->threads) {
      context.missing = true;
      return;
    }
    if (thread >= context.plan->grid.used()) return;
    Family::work(*context.args, *context.plan, reinterpret_cast<Barrier *>(context.workspace),
                 context.workspace + context.plan->teams() * int64_t(sizeof(Barrier)), thread);
  }
};

}  // namespace gemmtune

#define GEMMTUNE_EXPORT(FAMILY)                                              \
  extern "C" int32_t gemmtune_run(const GemmArgs *args) {                    \
    return gemmtune::Launcher<FAMILY>::run(*args);                           \
  }                                                                          \
  extern "C" int64_t gemmtune_workspace(const GemmArgs *args) {              \
    return gemmtune::Launcher<FAMILY>::workspace(*args);                     \
  }                                                                          \
  extern "C" int32_t gemmtune_abi(void) { return GEMMTUNE_ABI; }

#endif
