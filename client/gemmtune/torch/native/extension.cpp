// The hot path of gemmtune.torch in C++: a product with a row is launched without Python, and one without is
// passed on to torch's kernel. Whatever is not plainly one of the two goes to the Python path, which decides
// as it does without this extension: it loads kernels, warns of launches that fail, and tells watchers.
//
// The functions of the module, whose arguments gemmtune/torch/native_rows.py writes. Objects are capsules, and
// what describes a row or a launch is a list of integers. (pybind11's classes would double the time to compile.)
#include "linear.h"
#include "override.h"

namespace gemmtune {
namespace {

using Shared = std::shared_ptr<Row>;

Words words(PyObject *list) {
  Words found;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    found.words.push_back(PyLong_AsUnsignedLongLongMask(PyList_GET_ITEM(list, i)));
    if (PyErr_Occurred()) throw std::runtime_error("a description has something else than integers");
  }
  return found;
}

std::vector<Shared> rows(PyObject *list) {
  std::vector<Shared> found;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) found.push_back(held<Shared>(PyList_GET_ITEM(list, i)));
  return found;
}

int64_t integer(PyObject *object) { return PyLong_AsLongLong(object); }

PyObject *none() { return Py_NewRef(Py_None); }

using Arguments = PyObject *const *;

// ---- rows

PyObject *row(Arguments a) {
  Words from = words(a[0]);
  return capsule(std::make_shared<Row>(from));
}
PyObject *set_weaker(Arguments a) {
  held<Shared>(a[0])->weaker = a[1] == Py_None ? nullptr : held<Shared>(a[1]);
  return none();
}
PyObject *set_live(Arguments a) {
  held<Shared>(a[0])->live = PyObject_IsTrue(a[1]);
  return none();
}
PyObject *failed(Arguments a) { return PyLong_FromLong(held<Shared>(a[0])->failed); }
PyObject *calls(Arguments a) { return PyLong_FromLongLong(held<Shared>(a[0])->calls); }
PyObject *prepare(Arguments a) {
  Words from = words(a[2]);
  held<Shared>(a[0])->prepare(int(integer(a[1])), std::make_unique<Prepared>(from));
  return none();
}
PyObject *forget(Arguments a) {
  held<Shared>(a[0])->forget();
  return none();
}

// ---- apply()

PyObject *make_linear(Arguments a) { return capsule(Linear{integer(a[0]), integer(a[1]), {}}); }
PyObject *serve_linear(Arguments a) {
  decltype(Linear::rows) found;
  for (const Shared &one : rows(a[1])) found[one->shape.m] = one;
  held<Linear>(a[0]).rows.swap(found);
  return none();
}
PyObject *linear_function(Arguments a) { return PyCFunction_New(&LINEAR, a[0]); }

// ---- enable()

using Owned = std::unique_ptr<Override>;

PyObject *make_override(Arguments a) { return capsule(std::make_unique<Override>(PyUnicode_AsUTF8(a[0]))); }
PyObject *install_override(Arguments a) {
  held<Owned>(a[0])->install();
  return none();
}
PyObject *serve_override(Arguments a) {
  held<Owned>(a[0])->serve(rows(a[1]));
  return none();
}
PyObject *remove_override(Arguments a) {
  held<Owned>(a[0])->remove();
  return none();
}
PyObject *watch(Arguments a) {
  watchers = int(integer(a[0]));
  return none();
}

template <PyObject *function(Arguments), Py_ssize_t count>
PyObject *checked(PyObject *, Arguments arguments, Py_ssize_t given) {
  try {
    if (given != count) throw std::runtime_error("another number of arguments was expected");
    return function(arguments);
  } catch (...) {
    if (!PyErr_Occurred()) torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

template <PyObject *function(Arguments), Py_ssize_t count>
constexpr PyMethodDef method(const char *name) {
  return {name, (PyCFunction)(void (*)())checked<function, count>, METH_FASTCALL, nullptr};
}

PyMethodDef METHODS[] = {
    method<row, 1>("row"),
    method<set_weaker, 2>("set_weaker"),
    method<set_live, 2>("set_live"),
    method<failed, 1>("failed"),
    method<calls, 1>("calls"),
    method<prepare, 3>("prepare"),
    method<forget, 1>("forget"),
    method<make_linear, 2>("linear"),
    method<serve_linear, 2>("serve_linear"),
    method<linear_function, 1>("linear_function"),
    method<make_override, 1>("override"),
    method<install_override, 1>("install_override"),
    method<serve_override, 2>("serve_override"),
    method<remove_override, 1>("remove_override"),
    method<watch, 1>("watch"),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef MODULE{PyModuleDef_HEAD_INIT, "gemmtune_extension", nullptr, -1, METHODS,
                   nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace gemmtune

PyMODINIT_FUNC PyInit_gemmtune_extension() { return PyModule_Create(&gemmtune::MODULE); }
