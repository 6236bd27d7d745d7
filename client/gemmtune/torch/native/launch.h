// A row's launches on one device: argument blocks with their constants, whose addresses a launch fills in.
// Functions of the driver and of torch's streams arrive as addresses, so that no header of theirs is needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace gemmtune {

using at::Tensor;

// The addresses that a launch fills in, in the order of gemmtune.torch.tuned_row.ORDER: the second operand of
// the call, the first, the output, what is added; then the workspace.
enum { SECOND, FIRST, OUT, ADDED, WORKSPACE, VALUES };
using Values = std::array<uint64_t, VALUES>;

// Integers that Python wrote one after another; a list has its length before it.
struct Words {
  std::vector<uint64_t> words;
  size_t at = 0;

  uint64_t one() { return words.at(at++); }
  int64_t integer() { return int64_t(one()); }
  template <typename T>
  std::vector<T> list() {
    std::vector<T> found(one());
    for (T &word : found) word = T(one());
    return found;
  }
};

struct Patch {
  uint32_t offset, value;
  uint64_t plus;

  explicit Patch(Words &from) : offset(from.one()), value(from.one()), plus(from.one()) {}
};

struct TensorMap {
  Patch at;
  std::vector<int> numbers;  // data type, interleave, swizzle, promotion to L2, fill
  std::vector<uint64_t> sizes, strides;
  std::vector<uint32_t> box, steps;

  explicit TensorMap(Words &from)
      : at(from), numbers(from.list<int>()), sizes(from.list<uint64_t>()), strides(from.list<uint64_t>()),
        box(from.list<uint32_t>()), steps(from.list<uint32_t>()) {}
};

struct Launch {
  void *function;
  std::vector<uint32_t> sizes;  // grid, block, dynamic shared memory in bytes
  bool programmatic;
  std::vector<uint64_t> constants;  // the argument block
  std::vector<uint32_t> parameters;
  std::vector<Patch> patches;
  std::vector<TensorMap> maps;

  explicit Launch(Words &from)
      : function((void *)from.one()), sizes(from.list<uint32_t>()), programmatic(from.one()),
        constants(from.list<uint64_t>()), parameters(from.list<uint32_t>()) {
    for (uint64_t left = from.one(); left; --left) patches.emplace_back(from);
    for (uint64_t left = from.one(); left; --left) maps.emplace_back(from);
  }
};

// Functions of a driver, by address; 0 for what it has none of. `current` writes what identifies the current
// device (a context, an ordinal), which has to be `expected`.
struct Driver {
  enum { CUDA, HIP, CPU };
  uint64_t vendor, launch, encode, current, expected, stream;

  explicit Driver(Words &from)
      : vendor(from.one()), launch(from.one()), encode(from.one()), current(from.one()), expected(from.one()),
        stream(from.one()) {}
};

// CUlaunchAttribute and CUlaunchConfig of cuda.h.
struct Attribute {
  int id, pad, value[16];
};
struct Config {
  uint32_t grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  uint32_t count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
constexpr size_t BLOCK_ALIGNMENT = 128;

// The argument blocks of a row's launches, one after another, and the addresses that are in them.
class Blocks {
 public:
  explicit Blocks(const std::vector<Launch> &launches) {
    size_t size = BLOCK_ALIGNMENT;
    for (const Launch &one : launches) size += aligned(bytes(one));
    memory_.resize(size);
    char *at = memory_.data() + aligned(uint64_t(memory_.data())) - uint64_t(memory_.data());
    for (const Launch &one : launches) {
      std::memcpy(at, one.constants.data(), bytes(one));
      starts_.push_back(at);
      std::vector<void *> &parameters = parameters_.emplace_back();
      for (uint32_t offset : one.parameters) parameters.push_back(at + offset);
      at += aligned(bytes(one));
    }
  }

  // Launches all on a stream; the driver's status, 0 for success.
  int run(const Driver &driver, const std::vector<Launch> &launches, void *stream, const Values &values) {
    for (size_t i = 0; i < launches.size(); ++i)
      if (int status = fill(driver, launches[i], starts_[i], values)) {
        values_.fill(0);  // which maps hold is not known
        return status;
      }
    values_ = values;
    for (size_t i = 0; i < launches.size(); ++i)
      if (int status = launch(driver, launches[i], i, stream)) return status;
    return 0;
  }

 private:
  static size_t bytes(const Launch &one) { return one.constants.size() * sizeof(uint64_t); }
  static uint64_t aligned(uint64_t size) { return (size + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT; }

  int fill(const Driver &driver, const Launch &launch, char *start, const Values &values) {
    for (const Patch &one : launch.patches) {
      uint64_t address = values[one.value] + one.plus;
      std::memcpy(start + one.offset, &address, sizeof address);
    }
    using Encode = int (*)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                           const uint32_t *, int, int, int, int);
    for (const TensorMap &one : launch.maps) {
      if (values_[one.at.value] == values[one.at.value]) continue;
      const auto &n = one.numbers;
      int status = reinterpret_cast<Encode>(driver.encode)(
          start + one.at.offset, n[0], uint32_t(one.sizes.size()), (void *)(values[one.at.value] + one.at.plus),
          one.sizes.data(), one.strides.data(), one.box.data(), one.steps.data(), n[1], n[2], n[3], n[4]);
      if (status) return status;
    }
    return 0;
  }

  int launch(const Driver &driver, const Launch &one, size_t index, void *stream) {
    const auto &s = one.sizes;
    void **parameters = parameters_[index].data();
    if (driver.vendor == Driver::CPU) return reinterpret_cast<int (*)(void *)>(one.function)(starts_[index]);
    if (driver.vendor == Driver::HIP) {
      using Run = int (*)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *,
                          void **, void **);
      return reinterpret_cast<Run>(driver.launch)(one.function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], stream,
                                                  parameters, nullptr);
    }
    Attribute attribute{PROGRAMMATIC_STREAM_SERIALIZATION, 0, {1}};
    Config config{{s[0], s[1], s[2]}, {s[3], s[4], s[5]}, s[6], stream, &attribute, one.programmatic};
    using Run = int (*)(const Config *, void *, void **, void **);
    return reinterpret_cast<Run>(driver.launch)(&config, one.function, parameters, nullptr);
  }

  std::vector<char> memory_;
  std::vector<char *> starts_;
  std::vector<std::vector<void *>> parameters_;
  Values values_{};
};

// A row's kernels, loaded on one device.
class Prepared {
 public:
  explicit Prepared(Words &from)
      : driver_(from), bytes_(int64_t(from.one())), alignment_(int64_t(from.one())), launches_(read(from)),
        blocks_(launches_) {}

  // Whether the device is current on this thread.
  bool current() const {
    uint64_t found = 0;
    return !driver_.current ||
           (reinterpret_cast<int (*)(void *)>(driver_.current)(&found) == 0 && found == driver_.expected);
  }

  // Launches on torch's current stream. The workspace is torch's memory, freed once the launch is queued: what
  // is allocated later on the stream runs after it, and a graph's capture takes it from the graph's pool.
  int run(const Tensor &out, Values &values) {
    void *stream = nullptr;
    if (driver_.stream)
      if (int status = reinterpret_cast<int (*)(int32_t, void **)>(driver_.stream)(out.get_device(), &stream))
        return status;
    Tensor workspace;
    if (bytes_) {
      workspace = at::empty({bytes_ + alignment_}, out.options().dtype(at::kByte));
      values[WORKSPACE] = (uint64_t(workspace.data_ptr()) + alignment_ - 1) / alignment_ * alignment_;
    }
    if (busy_.test_and_set(std::memory_order_acquire)) {  // another thread launches the row
      Blocks own(launches_);
      return own.run(driver_, launches_, stream, values);
    }
    int status = blocks_.run(driver_, launches_, stream, values);
    busy_.clear(std::memory_order_release);
    return status;
  }

 private:
  static std::vector<Launch> read(Words &from) {
    std::vector<Launch> found;
    for (uint64_t left = from.one(); left; --left) found.emplace_back(from);
    return found;
  }

  Driver driver_;
  int64_t bytes_, alignment_;  // of the workspace
  std::vector<Launch> launches_;
  Blocks blocks_;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace gemmtune
