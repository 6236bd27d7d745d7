// apply(): the rows of one nn.Linear.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/cast.h>

#include <unordered_map>

#include "row.h"

// Declared here because their headers (torch/csrc/utils/pybind.h, autograd/python_variable.h) take longer to
// compile than all of this extension.
extern PyObject *THPVariableClass, *ParameterClass;
PyObject *THPVariable_Wrap(const at::TensorBase &);
namespace torch {
void translate_exception_to_python(const std::exception_ptr &);
}
namespace pybind11::detail {
template <>
struct __attribute__((visibility("default"))) type_caster<at::Tensor> {
  PYBIND11_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"));
  bool load(handle source, bool);
};
}  // namespace pybind11::detail

namespace gemmtune {

// What a PyCapsule holds.
template <typename T>
T &held(PyObject *capsule) {
  void *found = PyCapsule_GetPointer(capsule, nullptr);
  if (!found) throw std::runtime_error("a capsule of the extension was expected");
  return *static_cast<T *>(found);
}

template <typename T>
PyObject *capsule(T &&value) {
  return PyCapsule_New(new T(std::move(value)), nullptr,
                       [](PyObject *one) { delete static_cast<T *>(PyCapsule_GetPointer(one, nullptr)); });
}

// The rows of a linear layer by M. Read and written by holders of the GIL.
struct Linear {
  int64_t n, k;
  std::unordered_map<int64_t, std::shared_ptr<Row>> rows;
};

// Whether something must see the call as torch's own: a mode, a transform, a tracer or autocast.
inline bool intercepted() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return !(keys.included_ - c10::default_included_set).empty() ||
         !(c10::default_excluded_set - keys.excluded_).empty() ||  // autocast's keys are excluded while it is off
         at::impl::PythonTorchFunctionTLS::stack_len() > 0;
}

inline bool tensor(PyObject *object, Tensor &found, bool parameter) {
  auto *type = (PyObject *)Py_TYPE(object);
  if (type != THPVariableClass && !(parameter && type == ParameterClass)) return false;
  pybind11::detail::type_caster<Tensor> caster;
  if (!caster.load(object, false)) return false;
  found = std::move(static_cast<Tensor &>(caster));
  return true;
}

inline bool plain(const Tensor &t, at::ScalarType dtype) {
  return t.scalar_type() == dtype && t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg() &&
         !t._fw_grad(0).defined();
}

// (input, weight, bias or None): the output, torch's where M has no row, or None where the Python path has to
// decide.
inline PyObject *linear(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  try {
    Linear &site = held<Linear>(self);
    Tensor input, weight, bias;
    if (count != 3 || !tensor(arguments[0], input, false) || !input.dim() || input.size(-1) != site.k) Py_RETURN_NONE;
    const bool biased = arguments[2] != Py_None;
    if (watchers.load(std::memory_order_relaxed) || intercepted() || !tensor(arguments[1], weight, true) ||
        (biased && !tensor(arguments[2], bias, true)))
      Py_RETURN_NONE;
    auto found = site.rows.find(input.numel() / site.k);
    if (found == site.rows.end()) {
      Tensor out;
      {
        ReleaseGil release(true);
        out = at::linear(input, weight, biased ? std::optional<Tensor>(bias) : std::nullopt);
      }
      return THPVariable_Wrap(out);
    }
    const std::shared_ptr<Row> row = found->second;  // a refresh may replace it during the launch
    if (biased != (row->operands.extra == BIAS)) Py_RETURN_NONE;
    if (at::GradMode::is_enabled() &&
        (input.requires_grad() || weight.requires_grad() || (biased && bias.requires_grad())))
      Py_RETURN_NONE;
    const auto dtype = row->operands.dtype;
    if (!plain(input, dtype) || !plain(weight, dtype) || weight.dim() != 2 || weight.size(0) != site.n ||
        weight.size(1) != site.k)
      Py_RETURN_NONE;
    if (biased && (!plain(bias, dtype) || bias.dim() != 1 || bias.size(0) != site.n)) Py_RETURN_NONE;
    at::DimVector shape(input.sizes());
    shape.back() = site.n;
    auto out = run(row.get(), input, weight, biased ? &bias : nullptr, shape, true);
    if (!out) Py_RETURN_NONE;
    return THPVariable_Wrap(*out);
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

inline PyMethodDef LINEAR{"linear", (PyCFunction)(void (*)())linear, METH_FASTCALL, nullptr};

}  // namespace gemmtune
