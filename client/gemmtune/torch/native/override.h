// enable(): torch's operators, overridden at a backend's dispatch key.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <unordered_map>

#include "row.h"

namespace gemmtune {

using Shapes = std::unordered_map<Shape, std::vector<std::shared_ptr<Row>>, HashShape>;

// The operators that are overridden: where their operands are among their arguments, whether a matrix is
// added, and whether the extension launches their rows itself.
struct Operator {
  const char *name, *overload;
  int first;
  bool added, launched;
};
constexpr Operator OPERATORS[] = {
    {"mm", "", 0, false, true},           {"mm", "out", 0, false, false},
    {"bmm", "", 0, false, true},          {"bmm", "out", 0, false, false},
    {"addmm", "", 1, true, true},         {"addmm", "out", 1, true, false},
    {"_scaled_mm", "", 0, false, false},  {"_scaled_mm", "out", 0, false, false},
};

// The row of operands whose shapes have rows; nullptr without one.
inline Row *matching(const std::vector<std::shared_ptr<Row>> &rows, const Shape &s, const Tensor &a, const Tensor &b,
              const Tensor *added) {
  auto laid_a = layout(a), laid_b = layout(b);
  if (!laid_a || !laid_b || a.scalar_type() != b.scalar_type()) return nullptr;
  Operands wanted{a.scalar_type(), *laid_a, *laid_b, 0, 0, NOTHING, 0};
  if (s.batch) wanted.stride_a = a.stride(0), wanted.stride_b = b.stride(0);
  if (added) {
    if (added->scalar_type() != wanted.dtype || added->layout() != at::kStrided) return nullptr;
    wanted.extra = added->dim() == 1 ? BIAS : MATRIX;
    if (wanted.extra == BIAS) {
      if (added->size(0) != s.n || !added->is_contiguous()) return nullptr;
    } else {
      if (added->dim() != 2 || added->size(0) != s.m || added->size(1) != s.n || added->stride(1) != 1) return nullptr;
      wanted.ldc = s.m == 1 ? s.n : added->stride(0);
    }
  }
  for (const auto &one : rows)
    if (one->operands == wanted) return one.get();
  return nullptr;
}

// One operator's kernel, called before the Python path's and torch's.
struct Kernel final : c10::OperatorKernel {
  Kernel(const Operator &op, const std::atomic<const Shapes *> &shapes, c10::SafeKernelFunction torch,
         c10::SafeKernelFunction python, size_t count)
      : op(op), shapes(shapes), torch(std::move(torch)), python(std::move(python)), count(count) {}

  void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    using torch::jit::peek;
    const Tensor &a = peek(*stack, op.first, count).toTensor(), &b = peek(*stack, op.first + 1, count).toTensor();
    const Shapes *table = shapes.load(std::memory_order_acquire);
    auto next = [&](const c10::SafeKernelFunction &kernel) { kernel.callBoxed(handle, keys, stack); };
    if (watchers.load(std::memory_order_relaxed)) return next(python);
    if (!table || a.dim() != b.dim() || a.dim() < 2 || a.dim() > 3) return next(torch);
    const Shape s{a.dim() == 3 ? a.size(0) : 0, a.size(-2), b.size(-1), a.size(-1)};
    auto found = table->find(s);
    if (found == table->end() || b.size(-2) != s.k || (s.batch && b.size(0) != s.batch)) return next(torch);
    if (!op.launched) return next(python);
    const Tensor *added = nullptr;
    if (op.added) {
      for (int scalar : {3, 4})  // beta, alpha
        if (!peek(*stack, scalar, count).toScalar().equal(1)) return next(torch);
      added = &peek(*stack, 0, count).toTensor();
    }
    Row *row = matching(found->second, s, a, b, added);
    if (!row) return next(torch);
    at::DimVector shape(a.sizes());
    shape.back() = s.n;
    auto out = run(row, a, b, added, shape, false);
    if (!out) return next(python);
    torch::jit::drop(*stack, count);
    torch::jit::push(*stack, std::move(*out));
  }

  const Operator op;
  const std::atomic<const Shapes *> &shapes;
  const c10::SafeKernelFunction torch, python;
  const size_t count;
};

// The overrides of one device type. Made before the Python path's overrides, so that it knows torch's kernels,
// and installed after them.
class Override {
 public:
  explicit Override(const std::string &key) : key_(c10::parseDispatchKey(key)) {
    for (const Operator &op : OPERATORS) torch_.push_back(handle(op).getComputedKernelForDispatchKey(key_));
  }

  void install() {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key_, __FILE__, __LINE__);
    for (size_t i = 0; i < std::size(OPERATORS); ++i) {
      const Operator &op = OPERATORS[i];
      auto at = handle(op);
      auto kernel = std::make_unique<Kernel>(op, shapes_, torch_[i], at.getComputedKernelForDispatchKey(key_),
                                             at.schema().arguments().size());
      std::string name = op.name + (*op.overload ? std::string(".") + op.overload : "");
      library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }
    library_ = std::move(library);
  }

  void remove() { library_.reset(); }

  // Serves these rows from now on. Earlier tables stay: a thread may be reading one.
  void serve(const std::vector<std::shared_ptr<Row>> &rows) {
    auto table = std::make_unique<Shapes>();
    for (const auto &row : rows) (*table)[row->shape].push_back(row);
    shapes_.store(rows.empty() ? nullptr : table.get(), std::memory_order_release);
    tables_.push_back(std::move(table));
  }

 private:
  static c10::OperatorHandle handle(const Operator &op) {
    return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + op.name).c_str(), op.overload);
  }

  c10::DispatchKey key_;
  std::vector<c10::SafeKernelFunction> torch_;
  std::atomic<const Shapes *> shapes_{nullptr};
  std::vector<std::unique_ptr<Shapes>> tables_;
  std::unique_ptr<torch::Library> library_;
};

}  // namespace gemmtune
