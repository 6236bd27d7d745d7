// The process-wide thread pool that runs all kernels, and the kernels that measure bandwidth.
//
// Workers are created on demand and kept. Between calls they spin for about 50 us, so that a series
// of small GEMMs does not pay for wake-ups, then sleep, so that an idle pool frees the cores.
// The caller is thread 0 and keeps its affinity. Workers are pinned to the cores that follow the
// caller's in the process's mask, and are pinned again when the caller has moved to another core.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "abi.h"
#include "types.h"

namespace {

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Spins until `done()` or for 50 us; returns whether done() was true.
template <typename Done>
bool spin(Done done) {
  for (int64_t start = nanoseconds(); nanoseconds() - start < 50000;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause_core();
    }
  }
  return done();
}

struct Job {
  int32_t threads;
  GemmTask task;
  void *context;
};

class Pool {
 public:
  void run(int32_t threads, GemmTask task, void *context) {
    const std::lock_guard<std::mutex> one_at_a_time(mutex_);
    grow(threads - 1);
    pin(threads - 1);
    job_ = {int32_t(workers_.size()) < threads - 1 ? int32_t(workers_.size()) + 1 : threads, task,
            context};
    pending_.store(job_.threads - 1, std::memory_order_relaxed);
    for (int32_t i = 1; i < job_.threads; ++i) workers_[i - 1]->start();
    task(0, job_.threads, context);
    const auto finished = [this] { return pending_.load(std::memory_order_acquire) == 0; };
    while (!spin(finished)) sched_yield();
  }

 private:
  struct Worker {
    pthread_t thread;
    std::atomic<uint64_t> ordered{0};
    std::atomic<bool> asleep{false};
    std::mutex mutex;
    std::condition_variable wake;
    Pool *pool;
    int32_t index;
    int cpu = -1;

    void start() {
      ordered.fetch_add(1);
      if (asleep.load()) {
        const std::lock_guard<std::mutex> lock(mutex);
        wake.notify_one();
      }
    }

    void loop() {
      for (uint64_t done = 0;; ++done) {
        const auto called = [this, done] { return ordered.load() != done; };
        if (!spin(called)) {
          std::unique_lock<std::mutex> lock(mutex);
          asleep.store(true);
          wake.wait(lock, called);
          asleep.store(false);
        }
        const Job job = pool->job_;
        job.task(index, job.threads, job.context);
        pool->pending_.fetch_sub(1, std::memory_order_release);
      }
    }
  };

  void grow(int32_t workers) {
    if (cpus_.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      sched_getaffinity(getpid(), sizeof(set), &set);
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus_.push_back(cpu);
    }
    if (int32_t(workers_.size()) >= workers) return;
    sigset_t all, before;  // workers block all signals and leave them to the host's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (int32_t(workers_.size()) < workers) {
      auto *worker = new Worker;  // never deleted: its thread lives as long as the process
      worker->pool = this;
      worker->index = int32_t(workers_.size()) + 1;
      const auto loop = [](void *self) -> void * {
        static_cast<Worker *>(self)->loop();
        return nullptr;
      };
      if (pthread_create(&worker->thread, nullptr, loop, worker) != 0) {
        delete worker;
        break;  // the task is passed fewer threads than it asked for, and reports it
      }
      pthread_detach(worker->thread);
      workers_.push_back(worker);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void pin(int32_t workers) {
    size_t home = 0;
    const int here = sched_getcpu();
    for (size_t i = 0; i < cpus_.size(); ++i)
      if (cpus_[i] == here) home = i;
    for (int32_t i = 0; i < workers && i < int32_t(workers_.size()); ++i) {
      const int cpu = cpus_.empty() ? -1 : cpus_[(home + 1 + size_t(i)) % cpus_.size()];
      if (workers_[i]->cpu == cpu) continue;
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      pthread_setaffinity_np(workers_[i]->thread, sizeof(set), &set);
      workers_[i]->cpu = cpu;
    }
  }

  std::mutex mutex_;
  std::vector<int> cpus_;
  std::vector<Worker *> workers_;
  Job job_ = {};
  std::atomic<int32_t> pending_{0};
};

// Never destroyed: workers may outlive static destruction. A forked child starts with no workers.
Pool *pool = nullptr;
std::once_flag pool_once;

Pool &the_pool() {
  std::call_once(pool_once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  return *pool;
}

constexpr int64_t kLine = 64;
using Words = gemmtune::Vec<uint64_t, gemmtune::lanes<uint64_t>>;
constexpr int kParts = kLine / int(sizeof(Words));  // vectors per line

struct Transfer {
  const char *from;
  char *to;
  int64_t lines;
  std::atomic<uint64_t> sum;
};

int64_t first_line(const Transfer &transfer, int64_t thread, int64_t threads) {
  return transfer.lines * thread / threads;
}

void read_task(int32_t thread, int32_t threads, void *context) {
  Transfer &transfer = *static_cast<Transfer *>(context);
  const int64_t begin = first_line(transfer, thread, threads);
  const int64_t lines = first_line(transfer, thread + 1, threads) - begin;
  // Four address streams, which keep more hardware prefetchers and DRAM banks busy than one.
  constexpr int kStreams = 4, kAhead = 32;
  const int64_t each = lines / kStreams;
  const char *from = transfer.from + begin * kLine;
  Words sums[kStreams][kParts] = {};
  const auto add_line = [&](int stream, const char *p) {
    for (int i = 0; i < kParts; ++i)
      sums[stream][i] += gemmtune::load_bits<Words>(p + i * int(sizeof(Words)));
  };
  for (int64_t i = 0; i < each; ++i) {
    for (int s = 0; s < kStreams; ++s) {
      const char *p = from + (s * each + i) * kLine;
      __builtin_prefetch(p + kAhead * kLine);
      add_line(s, p);
    }
  }
  for (int64_t i = kStreams * each; i < lines; ++i) add_line(0, from + i * kLine);
  uint64_t words[sizeof(sums) / sizeof(uint64_t)], sum = 0;
  std::memcpy(words, sums, sizeof(sums));
  for (const uint64_t word : words) sum += word;
  transfer.sum += sum;
}

void copy_task(int32_t thread, int32_t threads, void *context) {
  Transfer &transfer = *static_cast<Transfer *>(context);
  const int64_t begin = first_line(transfer, thread, threads) * kLine;
  const int64_t end = first_line(transfer, thread + 1, threads) * kLine;
  std::memcpy(transfer.to + begin, transfer.from + begin, size_t(end - begin));
}

}  // namespace

extern "C" void gemmtune_parallel(int32_t threads, GemmTask task, void *context) {
  if (threads <= 1) {
    task(0, 1, context);
  } else {
    the_pool().run(threads, task, context);
  }
}

// Reads the whole cache lines within `bytes`. The result only keeps the loads from being optimized
// away.
extern "C" double gemmtune_read(const void *from, int64_t bytes, int32_t threads) {
  Transfer transfer = {static_cast<const char *>(from), nullptr, bytes / kLine, {0}};
  gemmtune_parallel(threads, read_task, &transfer);
  return double(transfer.sum);
}

extern "C" void gemmtune_copy(void *to, const void *from, int64_t bytes, int32_t threads) {
  const int64_t lines = bytes / kLine;
  Transfer transfer = {static_cast<const char *>(from), static_cast<char *>(to), lines, {0}};
  gemmtune_parallel(threads, copy_task, &transfer);
  const int64_t whole = transfer.lines * kLine;
  std::memcpy(transfer.to + whole, transfer.from + whole, size_t(bytes - whole));
}
