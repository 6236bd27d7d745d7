// The kernels of *.hsaco in this folder, built by
//   clang-19 -x hip --cuda-device-only -nogpuinc -nogpulib -O2 -std=c++17 -fuse-cuid=none \
//       --offload-arch=ARCH -S -Xclang -emit-obj kernels.hip -o kernels.o
//   ld.lld-19 -shared --no-undefined kernels.o -o ARCH.hsaco
// ARCH.txt is what llvm-readobj-19 --notes ARCH.hsaco prints.
#define KERNEL(NAME, THREADS) extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, THREADS))) void NAME
#define INDEX(i) (i) * 1024 + __builtin_amdgcn_workitem_id_x()

// Static LDS and two arguments.
KERNEL(shared, 256)(float* x, int n) {
    __attribute__((shared)) float held[300];
    held[n] = x[n];
    __builtin_amdgcn_s_barrier();
    x[n] = held[n + 1];
}

template <int COUNT>
__attribute__((device, always_inline)) inline void hold(float* x) {
    float held[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) held[i] = x[INDEX(i)];
    __builtin_amdgcn_s_barrier();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[INDEX(i)] = held[COUNT - 1 - i] * held[i];
}

// More values than registers: spills.
__attribute__((amdgpu_num_vgpr(24))) KERNEL(spilling, 1024)(float* x) { hold<40>(x); }
// More than 256 registers: accumulation registers, or spills on RDNA.
KERNEL(wide, 64)(float* x) { hold<270>(x); }
