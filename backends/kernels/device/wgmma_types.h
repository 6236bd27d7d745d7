// What tile_wgmma.h takes from the types of a product: its elements, sums, argument and epilogue.
#pragma once

#include "device/epilogue.h"
#include "device/matrix_epilogue.h"

namespace gemmtune {

// What differs between 16-bit floats and 8-bit elements.
template <typename TYPES>
struct WgmmaOf;
template <typename INPUT, typename C, typename D, typename BIAS>
struct WgmmaOf<Types<INPUT, C, D, BIAS>> {
    static constexpr bool kBytes = false;
    using A = INPUT;
    using B = INPUT;
    using Sum = float;
    using Product = GemmArgs;
    using Finish = gemmtune::Finish<Types<INPUT, C, D, BIAS>, 1>;
};
template <typename TYPE_A, typename TYPE_B, typename C, typename D, typename BIAS>
struct WgmmaOf<MatrixTypes<TYPE_A, TYPE_B, C, D, BIAS>> {
    using Types = MatrixTypes<TYPE_A, TYPE_B, C, D, BIAS>;
    static constexpr bool kBytes = true;
    using A = TYPE_A;
    using B = TYPE_B;
    using Sum = typename Types::Sum;
    using Product = ScaledArgs;
    using Finish = MatrixFinish<Types>;
};

}  // namespace gemmtune
