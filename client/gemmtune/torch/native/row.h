// A row: which products it is for, when it may run, and its launch. gemmtune/torch/layouts.py and tuned_row.py
// say the same in Python; tests compare both.
#pragma once

#include <ATen/Context.h>
#include <Python.h>

#include <memory>
#include <optional>

#include "launch.h"

namespace gemmtune {

struct Layout {
  bool transposed;
  int64_t ld;

  bool operator==(const Layout &) const = default;
};

// As gemmtune.torch.layouts.layout() has it.
inline std::optional<Layout> layout(const Tensor &matrix) {
  int64_t rows = matrix.size(-2), columns = matrix.size(-1), stride = matrix.stride(-2), inner = matrix.stride(-1);
  if (inner == 1 && (stride >= columns || rows == 1)) return Layout{false, rows == 1 ? columns : stride};
  if (stride == 1 && (inner >= rows || columns == 1)) return Layout{true, columns == 1 ? rows : inner};
  return std::nullopt;
}

enum Extra { NOTHING, BIAS, MATRIX };

// Sizes of a product; `batch` is 0 for operands of two dimensions.
struct Shape {
  int64_t batch, m, n, k;
  bool operator==(const Shape &) const = default;
};

struct HashShape {
  size_t operator()(const Shape &s) const {
    uint64_t hash = 0;
    for (uint64_t one : {s.batch, s.m, s.n, s.k}) hash = (hash ^ one) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
  }
};

// What tells products of equal shapes apart.
struct Operands {
  at::ScalarType dtype;
  Layout a, b;
  int64_t stride_a, stride_b;
  int extra;
  int64_t ldc;
  bool operator==(const Operands &) const = default;
};

// As gemmtune.torch.precision.fp32_compute() has it; ANY for operands of another type.
enum Compute { ANY, FP32, TF32, SHORTER };

inline Compute fp32_compute(bool cpu) {
  using Precision = at::Float32Precision;
  auto backend = cpu ? at::Float32Backend::MKLDNN : at::Float32Backend::CUDA;
  auto set = at::globalContext().float32Precision(backend, at::Float32Op::MATMUL);
  if (set == Precision::NONE || set == Precision::IEEE) return FP32;
  return set == Precision::TF32 ? TF32 : SHORTER;
}

constexpr int MOST_DEVICES = 16;

struct Row {
  Shape shape;
  Operands operands;
  uint64_t alignment_mask;
  bool deterministic;
  int compute;
  std::shared_ptr<Row> weaker;  // of the same product, for operands of a weaker alignment
  std::atomic<bool> live{false};
  std::atomic<int> failed{0};  // the status of a launch that failed
  std::atomic<int64_t> calls{0};
  std::array<std::atomic<Prepared *>, MOST_DEVICES> prepared{};
  std::vector<std::unique_ptr<Prepared>> owned;  // until the row goes: a thread may be launching one

  explicit Row(Words &from)
      : shape{from.integer(), from.integer(), from.integer(), from.integer()},
        operands{at::ScalarType(from.one()), layout(from), layout(from), from.integer(), from.integer(),
                 int(from.one()), from.integer()},
        alignment_mask(from.one()), deterministic(from.one()), compute(int(from.one())) {}

  static Layout layout(Words &from) {
    bool transposed = from.one();
    return {transposed, from.integer()};
  }

  void prepare(int device, std::unique_ptr<Prepared> one) {
    prepared.at(device).store(one.get(), std::memory_order_release);
    owned.push_back(std::move(one));
  }
  void forget() {
    for (auto &one : prepared) one.store(nullptr, std::memory_order_release);
  }
};

// As TunedRow.applies() has it.
inline Row *usable(Row *row, uint64_t addresses, bool cpu) {
  while (row && (!row->live.load(std::memory_order_relaxed) || addresses & row->alignment_mask)) row = row->weaker.get();
  if (!row || (!row->deterministic && at::globalContext().deterministicAlgorithms())) return nullptr;
  return row->compute != ANY && row->compute != fp32_compute(cpu) ? nullptr : row;
}

struct ReleaseGil {
  explicit ReleaseGil(bool held) : state(held ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGil() {
    if (state) PyEval_RestoreThread(state);
  }
  PyThreadState *state;
};

// The product of tensors that match a row; nothing is computed where the Python path has to decide.
inline std::optional<Tensor> run(Row *first, const Tensor &a, const Tensor &b, const Tensor *added, at::IntArrayRef shape,
                          bool gil) {
  if (b.device() != a.device() || (added && added->device() != a.device())) return std::nullopt;
  const bool cpu = a.is_cpu();
  const int index = cpu ? 0 : a.get_device();
  Values values{uint64_t(b.const_data_ptr()), uint64_t(a.const_data_ptr()), 0,
                added ? uint64_t(added->const_data_ptr()) : 0, 0};
  Row *row = usable(first, values[SECOND] | values[FIRST] | values[ADDED], cpu);
  if (!row || index >= MOST_DEVICES || !values[SECOND] || !values[FIRST] || (added && !values[ADDED]))
    return std::nullopt;
  Prepared *prepared = row->prepared[index].load(std::memory_order_acquire);
  if (!prepared || !prepared->current()) return std::nullopt;
  Tensor out = at::empty(shape, a.options());
  values[OUT] = uint64_t(out.data_ptr());
  int status;
  {
    ReleaseGil release(gil);
    status = prepared->run(out, values);
  }
  if (status) {  // the Python path warns, retires the row, and leaves the product to torch
    row->live = false;
    row->failed = status;
    return std::nullopt;
  }
  row->calls.fetch_add(1, std::memory_order_relaxed);
  return out;
}

// While it is not 0, the Python path runs every product, and tells watchers of it.
inline std::atomic<int> watchers{0};

}  // namespace gemmtune
