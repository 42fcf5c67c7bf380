// What CUDA gives a kernel without any header, for a C++ compiler. No header is included: that keeps compilation short,
// and a name that CUDA does not have is an error here too.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define warpSize 32

typedef decltype(sizeof(0)) size_t;
typedef unsigned long long emu_u64;
#define EMU inline

// -- vectors and indices ----------------------------------------------------------------------------------------------

#define EMU_VECTORS(T, V) \
  struct __align__(2 * sizeof(T)) V##2 { T x, y; }; \
  struct V##3 { T x, y, z; }; \
  struct __align__(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) V##4 { T x, y, z, w; }; \
  EMU V##2 make_##V##2(T x, T y) { return V##2{x, y}; } \
  EMU V##3 make_##V##3(T x, T y, T z) { return V##3{x, y, z}; } \
  EMU V##4 make_##V##4(T x, T y, T z, T w) { return V##4{x, y, z, w}; }
EMU_VECTORS(signed char, char)
EMU_VECTORS(unsigned char, uchar)
EMU_VECTORS(short, short)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned int, uint)
EMU_VECTORS(long long, longlong)
EMU_VECTORS(unsigned long long, ulonglong)
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)
struct dim3 { unsigned int x, y, z; };

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// -- the machine (machine.cpp) ----------------------------------------------------------------------------------------

extern "C" {
extern unsigned char* emu_shared;  // the shared memory of the present block
extern emu_u64 emu_stages;         // how often blocks have come on stage
[[noreturn]] void emu_fail(const char* message);
// All lanes of `mask` give a value; the values of all, and which lanes gave one.
const emu_u64* emu_exchange(const char* what, unsigned int mask, emu_u64 value, unsigned int* present);
void emu_barrier(unsigned int id, unsigned int threads);  // threads 0: all of the block
unsigned int emu_count(bool flag);                       // a barrier of the block; how many threads had the flag
unsigned int emu_lane();
unsigned int emu_active();
unsigned int emu_cluster_rank();
unsigned int emu_cluster_size();
void emu_cluster_sync();
void* emu_cluster_at(void* p, unsigned int rank);
// Barriers in shared memory and of some threads, tiles (tiles.hpp), matrix units (products.hpp).
unsigned int emu_shared_at(const void* p);
void emu_bar_init(emu_u64* bar, unsigned int count);
void emu_bar_ready();
void emu_bar_expect(emu_u64* bar, unsigned int bytes);
void emu_bar_arrive(emu_u64* bar);
void emu_bar_wait(emu_u64* bar, unsigned int parity);
void emu_send(void* to, emu_u64 value, unsigned int bytes, emu_u64* bar, unsigned int rank);
void emu_group_barrier(int id, int threads, bool waits);
void emu_tile_load(const char* what, void* to, const void* map, emu_u64* bar, const int* at, unsigned int rank);
void emu_tile_store(const char* what, const void* map, const void* from, const int* at, unsigned int rank);
void emu_tile_store_end();
void emu_tile_store_wait(int left);
void emu_tile_prefetch(const void* map);
void emu_async_fence();
void emu_registers_set(int count);
void emu_mma_group(const char* what, int kind, unsigned int columns, unsigned int transposed, void* d, emu_u64 a, emu_u64 b, bool keep,
                   const unsigned int* from);
void emu_mma_fence();
void emu_mma_end();
void emu_mma_wait(int left);
void emu_mma_warp(const char* what, int kind, void* d, const unsigned int* a, const unsigned int* b);
void emu_mma_double(const char* what, double* d, const double* a, double b, unsigned int halves);
void emu_matrix_move(const char* what, const void* p, unsigned int* words, int how);  // 0: load, 1: transposed, 2: store
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
}

template <int... I> struct emu_list {};
template <int N, int... I> struct emu_upto : emu_upto<N - 1, N - 1, I...> {};
template <int... I> struct emu_upto<0, I...> { typedef emu_list<I...> list; };
template <class T> struct emu_is_pointer { static constexpr int value = 0; };
template <class T> struct emu_is_pointer<T*> { static constexpr int value = 0x8000; };
template <class T> struct emu_same { typedef T type; };
template <class... P, int... I> EMU void emu_call(void (*f)(P...), void** a, emu_list<I...>) { f(*(P*)a[I]...); }
template <class... P> EMU void emu_call(void (*f)(P...), void** a) {
  emu_call(f, a, typename emu_upto<sizeof...(P)>::list());
}
template <class... P> EMU void emu_shape(void (*)(P...), unsigned short* out) {
  const unsigned short found[] = {sizeof...(P), (unsigned short)(sizeof(P) | emu_is_pointer<P>::value)...};
  for (unsigned k = 0; k <= sizeof...(P); ++k) out[k] = found[k];
}
// How a kernel is entered by one thread, and by all threads of a block in turn (from `at`, in steps of `step`, modulo
// their number), and the sizes of its parameters.
#define EMU_KERNEL(space, name) \
  extern "C" __attribute__((visibility("default"))) void emu_one_##name(void** a) { emu_call(space::name, a); } \
  extern "C" __attribute__((visibility("default"))) void emu_all_##name(void** a, unsigned int at, unsigned int step) { \
    const unsigned int count = blockDim.x; \
    for (unsigned int t = 0; t < count; ++t, at = at + step < count ? at + step : at + step - count) { \
      threadIdx.x = at; \
      emu_call(space::name, a); \
    } \
  } \
  extern "C" __attribute__((visibility("default"))) void emu_shape_##name(unsigned short* out) { \
    emu_shape(space::name, out); \
  }

// -- bits -------------------------------------------------------------------------------------------------------------

template <class T, class S> EMU T emu_bits(S x) {
  static_assert(sizeof(T) == sizeof(S), "bits of another width");
  T r;
  __builtin_memcpy(&r, &x, sizeof(T));
  return r;
}
EMU int __float_as_int(float x) { return emu_bits<int>(x); }
EMU unsigned int __float_as_uint(float x) { return emu_bits<unsigned int>(x); }
EMU float __int_as_float(int x) { return emu_bits<float>(x); }
EMU float __uint_as_float(unsigned int x) { return emu_bits<float>(x); }
EMU long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
EMU double __longlong_as_double(long long x) { return emu_bits<double>(x); }
EMU int __double2hiint(double x) { return (int)(emu_bits<emu_u64>(x) >> 32); }
EMU int __double2loint(double x) { return (int)emu_bits<emu_u64>(x); }
EMU double __hiloint2double(int hi, int lo) { return emu_bits<double>((emu_u64)(unsigned int)hi << 32 | (unsigned int)lo); }
EMU int __popc(unsigned int x) { return __builtin_popcount(x); }
EMU int __popcll(emu_u64 x) { return __builtin_popcountll(x); }
EMU int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
EMU int __clzll(long long x) { return x ? __builtin_clzll((emu_u64)x) : 64; }
EMU int __ffs(int x) { return __builtin_ffs(x); }
EMU int __ffsll(long long x) { return __builtin_ffsll(x); }
EMU unsigned int __brev(unsigned int x) {
  unsigned int r = 0;
  for (int k = 0; k < 32; ++k) r |= (x >> k & 1u) << (31 - k);
  return r;
}
EMU unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int s) {
  emu_u64 both = (emu_u64)b << 32 | a;
  unsigned int r = 0;
  for (int k = 0; k < 4; ++k) {
    unsigned int pick = s >> (4 * k) & 15u, byte = (unsigned int)(both >> (8 * (pick & 7u))) & 255u;
    r |= (pick & 8u ? (byte & 128u ? 255u : 0u) : byte) << (8 * k);
  }
  return r;
}
EMU unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((emu_u64)a * b >> 32); }
EMU int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
EMU emu_u64 __umul64hi(emu_u64 a, emu_u64 b) { return (emu_u64)((unsigned __int128)a * b >> 64); }
EMU long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
EMU unsigned int __funnelshift_l(unsigned int lo, unsigned int hi, unsigned int s) {
  return (unsigned int)(((emu_u64)hi << 32 | lo) << (s & 31u) >> 32);
}
EMU unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int s) {
  return (unsigned int)(((emu_u64)hi << 32 | lo) >> (s & 31u));
}

// -- functions of real numbers: C's, and the overloads for float that CUDA has ----------------------------------------

#define EMU_ONE(name) \
  extern "C" double name(double); \
  extern "C" float name##f(float); \
  EMU float name(float x) { return name##f(x); }
#define EMU_TWO(name) \
  extern "C" double name(double, double); \
  extern "C" float name##f(float, float); \
  EMU float name(float x, float y) { return name##f(x, y); }
EMU_ONE(sqrt) EMU_ONE(cbrt) EMU_ONE(exp) EMU_ONE(exp2) EMU_ONE(expm1) EMU_ONE(log) EMU_ONE(log2) EMU_ONE(log10)
EMU_ONE(log1p) EMU_ONE(sin) EMU_ONE(cos) EMU_ONE(tan) EMU_ONE(asin) EMU_ONE(acos) EMU_ONE(atan) EMU_ONE(sinh)
EMU_ONE(cosh) EMU_ONE(tanh) EMU_ONE(asinh) EMU_ONE(acosh) EMU_ONE(atanh) EMU_ONE(erf) EMU_ONE(erfc) EMU_ONE(floor)
EMU_ONE(ceil) EMU_ONE(rint) EMU_ONE(nearbyint) EMU_ONE(trunc) EMU_ONE(round) EMU_ONE(fabs) EMU_ONE(tgamma)
EMU_ONE(lgamma) EMU_ONE(logb)
EMU_TWO(pow) EMU_TWO(fmod) EMU_TWO(remainder) EMU_TWO(atan2) EMU_TWO(copysign) EMU_TWO(hypot) EMU_TWO(nextafter)
EMU_TWO(fdim)
extern "C" {
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
double frexp(double, int*);
float frexpf(float, int*);
double modf(double, double*);
float modff(float, float*);
int ilogb(double);
int ilogbf(float);
int abs(int);
long long llabs(long long);
}
EMU float fma(float a, float b, float c) { return fmaf(a, b, c); }
EMU float ldexp(float x, int k) { return ldexpf(x, k); }
EMU int ilogb(float x) { return ilogbf(x); }
EMU long long abs(long long x) { return llabs(x); }
EMU float abs(float x) { return fabsf(x); }
EMU double abs(double x) { return fabs(x); }
// CUDA's order -0.0 below +0.0; C leaves it open.
template <class T> EMU T emu_fmin(T a, T b) { return a != a ? b : b != b ? a : a < b || (a == b && __builtin_signbit(a)) ? a : b; }
template <class T> EMU T emu_fmax(T a, T b) { return a != a ? b : b != b ? a : a > b || (a == b && __builtin_signbit(b)) ? a : b; }
EMU float emu_fminf(float a, float b) { return emu_fmin(a, b); }
EMU float emu_fmaxf(float a, float b) { return emu_fmax(a, b); }
#define fmin emu_fmin
#define fmax emu_fmax
#define fminf emu_fminf
#define fmaxf emu_fmaxf
#define EMU_ORDER(T, lesser, greater) \
  EMU T min(T a, T b) { return lesser; } \
  EMU T max(T a, T b) { return greater; }
EMU_ORDER(int, b < a ? b : a, b > a ? b : a)
EMU_ORDER(unsigned int, b < a ? b : a, b > a ? b : a)
EMU_ORDER(long long, b < a ? b : a, b > a ? b : a)
EMU_ORDER(unsigned long long, b < a ? b : a, b > a ? b : a)
EMU_ORDER(float, emu_fmin(a, b), emu_fmax(a, b))
EMU_ORDER(double, emu_fmin(a, b), emu_fmax(a, b))
EMU bool isnan(double x) { return x != x; }
EMU bool isinf(double x) { return x == x && x - x != 0; }
EMU bool isfinite(double x) { return x - x == 0; }
EMU bool signbit(double x) { return __builtin_signbit(x); }
EMU double rsqrt(double x) { return 1.0 / sqrt(x); }
EMU float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
EMU float rsqrt(float x) { return rsqrtf(x); }
EMU float exp10f(float x) { return (float)pow(10.0, (double)x); }
EMU double exp10(double x) { return pow(10.0, x); }
EMU float __expf(float x) { return (float)exp((double)x); }
EMU float __exp10f(float x) { return (float)pow(10.0, (double)x); }
EMU float __logf(float x) { return (float)log((double)x); }
EMU float __log2f(float x) { return (float)log2((double)x); }
EMU float __log10f(float x) { return (float)log10((double)x); }
EMU float __sinf(float x) { return (float)sin((double)x); }
EMU float __cosf(float x) { return (float)cos((double)x); }
EMU float __tanf(float x) { return (float)tan((double)x); }
EMU float __powf(float x, float y) { return (float)exp2((double)y * log2((double)x)); }
// The quotient is 0 for a divisor beyond 2^126, and NaN for an infinite dividend with it.
EMU float __fdividef(float a, float b) {
  float size = fabsf(b);
  return size > 0x1p126f && size <= 0x1.fffffep127f ? a * 0.0f : a / b;
}
EMU float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }
EMU float __fadd_rn(float a, float b) { return a + b; }
EMU float __fsub_rn(float a, float b) { return a - b; }
EMU float __fmul_rn(float a, float b) { return a * b; }
EMU float __fdiv_rn(float a, float b) { return a / b; }
EMU float __frcp_rn(float a) { return 1.0f / a; }
EMU float __fsqrt_rn(float a) { return sqrtf(a); }
EMU float __frsqrt_rn(float a) { return rsqrtf(a); }
EMU float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
EMU double __dadd_rn(double a, double b) { return a + b; }
EMU double __dsub_rn(double a, double b) { return a - b; }
EMU double __dmul_rn(double a, double b) { return a * b; }
EMU double __ddiv_rn(double a, double b) { return a / b; }
EMU double __drcp_rn(double a) { return 1.0 / a; }
EMU double __dsqrt_rn(double a) { return sqrt(a); }
EMU double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// -- conversions ------------------------------------------------------------------------------------------------------

// Saturating; NaN gives 0 in 32 bits, and the sign bit alone in 64.
template <class I, class F> EMU I emu_convert(F x) {
  constexpr bool is_signed = I(-1) < I(1);
  constexpr I top = (I)(is_signed ? ~(emu_u64)0 >> (65 - 8 * sizeof(I)) : ~(emu_u64)0);
  constexpr F past = (F)((emu_u64)1 << (8 * sizeof(I) - 1)) * (is_signed ? 1 : 2);
  if (x != x) return sizeof(I) == 8 ? (I)((emu_u64)1 << 63) : (I)0;
  if (x >= past) return top;
  if (is_signed ? x <= -past : x <= 0) return is_signed ? (I)(-top - 1) : (I)0;
  return (I)x;
}
#define EMU_TO_INT(F, from, I, to) \
  EMU I __##from##2##to##_rz(F x) { return emu_convert<I>(trunc(x)); } \
  EMU I __##from##2##to##_rn(F x) { return emu_convert<I>(rint(x)); } \
  EMU I __##from##2##to##_rd(F x) { return emu_convert<I>(floor(x)); } \
  EMU I __##from##2##to##_ru(F x) { return emu_convert<I>(ceil(x)); }
EMU_TO_INT(float, float, int, int)
EMU_TO_INT(float, float, unsigned int, uint)
EMU_TO_INT(float, float, long long, ll)
EMU_TO_INT(float, float, unsigned long long, ull)
EMU_TO_INT(double, double, int, int)
EMU_TO_INT(double, double, unsigned int, uint)
EMU_TO_INT(double, double, long long, ll)
EMU_TO_INT(double, double, unsigned long long, ull)
EMU float emu_nearer_zero(float x) { return emu_bits<float>(emu_bits<int>(x) - 1); }
EMU float __double2float_rn(double x) { return (float)x; }
EMU float __double2float_rz(double x) {
  float r = (float)x;
  return fabs((double)r) > fabs(x) ? emu_nearer_zero(r) : r;
}
EMU float __ull2float_rn(emu_u64 x) { return (float)x; }
EMU float __ull2float_rz(emu_u64 x) {
  float r = (float)x;
  return r >= 0x1p64f || (emu_u64)r > x ? emu_nearer_zero(r) : r;
}
EMU float __ll2float_rn(long long x) { return (float)x; }
EMU float __ll2float_rz(long long x) { return x < 0 ? -__ull2float_rz(0ull - (emu_u64)x) : __ull2float_rz((emu_u64)x); }
EMU float __int2float_rn(int x) { return (float)x; }
EMU float __int2float_rz(int x) { return __ll2float_rz(x); }
EMU float __uint2float_rn(unsigned int x) { return (float)x; }
EMU float __uint2float_rz(unsigned int x) { return __ull2float_rz(x); }
EMU double __int2double_rn(int x) { return x; }
EMU double __uint2double_rn(unsigned int x) { return x; }
EMU double __ll2double_rn(long long x) { return (double)x; }
EMU double __ull2double_rn(emu_u64 x) { return (double)x; }

// The bits of the f16 and bf16 next to a number, ties to even, any NaN the canonical one; and the way back.
EMU unsigned short emu_f16(float x) {
  unsigned int u = emu_bits<unsigned int>(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fff;
  if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (size < 0x38800000u) return (unsigned short)(sign | (emu_bits<unsigned int>(emu_bits<float>(size) + 0.5f) - 0x3f000000u));
  return (unsigned short)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
}
EMU float emu_from_f16(unsigned short h) {
  unsigned int sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
  if (size >= 0x7c00u) return emu_bits<float>(size > 0x7c00u ? 0x7fffffffu : sign | 0x7f800000u);
  if (size < 0x400u) return emu_bits<float>(sign | emu_bits<unsigned int>((float)size * 0x1p-24f));
  return emu_bits<float>(sign | ((size << 13) + 0x38000000u));
}
EMU unsigned short emu_bf16(float x) {
  unsigned int u = emu_bits<unsigned int>(x);
  return x != x ? (unsigned short)0x7fff : (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
EMU float emu_from_bf16(unsigned short h) { return emu_bits<float>((unsigned int)h << 16); }
// A number rounded to so many significant bits: what an approximation may return.
EMU float emu_coarse(float x, int bits) {
  if (!(x - x == 0)) return x;
  unsigned int u = emu_bits<unsigned int>(x), drop = 24 - bits;
  return emu_bits<float>((u + (1u << (drop - 1))) >> drop << drop);
}

// -- atomics, fences, cached accesses ---------------------------------------------------------------------------------

template <class T> struct emu_atomic { static constexpr int known = 0; };
template <> struct emu_atomic<int> { static constexpr int known = 3; };
template <> struct emu_atomic<unsigned int> { static constexpr int known = 3; };
template <> struct emu_atomic<unsigned long long> { static constexpr int known = 3; };
template <> struct emu_atomic<long long> { static constexpr int known = 2; };
template <> struct emu_atomic<float> { static constexpr int known = 1; };
template <> struct emu_atomic<double> { static constexpr int known = 1; };
#define EMU_ATOMIC(name, group, result) \
  template <class T> EMU T name(T* p, typename emu_same<T>::type v) { \
    static_assert(emu_atomic<T>::known & group, "CUDA has no such atomic operation on this type"); \
    T old = *p; \
    *p = result; \
    return old; \
  }
template <class T> EMU T emu_wrap_add(T a, T b) { return (T)((emu_u64)a + (emu_u64)b); }
template <> EMU float emu_wrap_add(float a, float b) { return a + b; }
template <> EMU double emu_wrap_add(double a, double b) { return a + b; }
EMU_ATOMIC(atomicAdd, 1, emu_wrap_add(old, v))
EMU_ATOMIC(atomicMin, 2, v < old ? v : old)
EMU_ATOMIC(atomicMax, 2, v > old ? v : old)
EMU_ATOMIC(atomicAnd, 2, old & v)
EMU_ATOMIC(atomicOr, 2, old | v)
EMU_ATOMIC(atomicXor, 2, old ^ v)
template <class T> EMU T atomicSub(T* p, typename emu_same<T>::type v) { return atomicAdd(p, (T)((emu_u64)0 - (emu_u64)v)); }
template <class T> EMU T atomicExch(T* p, typename emu_same<T>::type v) {
  T old = *p;
  *p = v;
  return old;
}
template <class T> EMU T atomicCAS(T* p, typename emu_same<T>::type expected, typename emu_same<T>::type v) {
  T old = *p;
  if (old == expected) *p = v;
  return old;
}
EMU unsigned int atomicInc(unsigned int* p, unsigned int v) {
  unsigned int old = *p;
  *p = old >= v ? 0 : old + 1;
  return old;
}
EMU unsigned int atomicDec(unsigned int* p, unsigned int v) {
  unsigned int old = *p;
  *p = old == 0 || old > v ? v : old - 1;
  return old;
}
EMU void __threadfence() {}
EMU void __threadfence_block() {}
EMU void __threadfence_system() {}
EMU void __nanosleep(unsigned int) {}
EMU void __trap() { emu_fail("__trap()"); }
template <class T> EMU T __ldg(const T* p) { return *p; }
template <class T> EMU T __ldcs(const T* p) { return *p; }
template <class T> EMU T __ldcg(const T* p) { return *p; }
template <class T> EMU void __stcs(T* p, T v) { *p = v; }
template <class T> EMU void __stcg(T* p, T v) { *p = v; }

// -- asynchronous copies ----------------------------------------------------------------------------------------------

// They may happen at once, or as late as they are waited for: those of every other thread do the one, of the rest the other.
struct emu_copy { void* to; const void* from; unsigned int width, group; };  // from nowhere: zeros
struct emu_copies { emu_copy all[32]; unsigned int first, end, groups; emu_u64 stage; };
EMU emu_copies& emu_pending() {
  static emu_copies all[16 * 1024];
  emu_copies& c = all[emu_cluster_rank() * 1024 + threadIdx.x];
  if (c.stage != emu_stages) c.first = c.end = c.groups = 0, c.stage = emu_stages;  // another block's are forgotten
  return c;
}
EMU void emu_copy_first(emu_copies& c) {
  const emu_copy& one = c.all[c.first++ % 32];
  if (one.from) memcpy(one.to, one.from, one.width);
  else memset(one.to, 0, one.width);
}
EMU void emu_stage(void* to, const void* from, unsigned int width = 16, bool inside = true) {
  if ((emu_u64)to % width || (emu_u64)from % width) emu_fail("an asynchronous copy is not aligned");
  if (!inside) from = nullptr;
  if (threadIdx.x & 1) {
    if (from) memcpy(to, from, width);
    else memset(to, 0, width);
    return;
  }
  emu_copies& c = emu_pending();
  if (c.end - c.first == 32) emu_copy_first(c);
  c.all[c.end++ % 32] = emu_copy{to, from, width, c.groups};
}
EMU void emu_stage_end() { ++emu_pending().groups; }
EMU void emu_stage_wait(unsigned int left) {
  emu_copies& c = emu_pending();
  while (c.first != c.end && (int)(c.groups - c.all[c.first % 32].group) > (int)left) emu_copy_first(c);
}

// -- warps and blocks -------------------------------------------------------------------------------------------------

EMU void __syncthreads() { emu_barrier(0, 0); }
EMU int __syncthreads_count(int x) { return (int)emu_count(x != 0); }
EMU int __syncthreads_or(int x) { return emu_count(x != 0) != 0; }
EMU int __syncthreads_and(int x) { return emu_count(x != 0) == blockDim.x; }
EMU void __syncwarp(unsigned int mask = 0xffffffffu) {
  unsigned int present;
  emu_exchange("__syncwarp", mask, 0, &present);
}
EMU unsigned int __activemask() { return emu_active(); }
template <class T> EMU T emu_shuffle(const char* what, unsigned int mask, T x, unsigned int source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  emu_u64 word = 0;
  unsigned int present;
  __builtin_memcpy(&word, &x, sizeof(T));
  const emu_u64* words = emu_exchange(what, mask, word, &present);
  if (!(present >> source & 1u)) emu_fail("a shuffle reads from a lane that takes no part in it");
  __builtin_memcpy(&x, &words[source], sizeof(T));
  return x;
}
template <class T> EMU T __shfl_sync(unsigned int mask, T x, int from, int width = 32) {
  unsigned int lane = emu_lane(), within = (unsigned int)width - 1;
  return emu_shuffle("__shfl_sync", mask, x, (lane & ~within) | ((unsigned int)from & within));
}
template <class T> EMU T __shfl_up_sync(unsigned int mask, T x, unsigned int by, int width = 32) {
  unsigned int lane = emu_lane(), within = lane & ((unsigned int)width - 1);
  return emu_shuffle("__shfl_up_sync", mask, x, by > within ? lane : lane - by);
}
template <class T> EMU T __shfl_down_sync(unsigned int mask, T x, unsigned int by, int width = 32) {
  unsigned int lane = emu_lane(), within = lane & ((unsigned int)width - 1);
  return emu_shuffle("__shfl_down_sync", mask, x, by >= (unsigned int)width - within ? lane : lane + by);
}
template <class T> EMU T __shfl_xor_sync(unsigned int mask, T x, int by, int width = 32) {
  unsigned int lane = emu_lane(), source = lane ^ (unsigned int)by;
  return emu_shuffle("__shfl_xor_sync", mask, x, source > (lane | ((unsigned int)width - 1)) ? lane : source);
}
EMU unsigned int __ballot_sync(unsigned int mask, int x) {
  unsigned int present, r = 0;
  const emu_u64* words = emu_exchange("__ballot_sync", mask, x != 0, &present);
  for (int k = 0; k < 32; ++k) r |= (present >> k & 1u & (unsigned int)words[k]) << k;
  return r;
}
EMU int __any_sync(unsigned int mask, int x) { return __ballot_sync(mask, x) != 0; }
EMU int __all_sync(unsigned int mask, int x) { return __ballot_sync(mask, !x) == 0; }
template <class T> EMU unsigned int __match_any_sync(unsigned int mask, T x) {
  emu_u64 word = 0;
  unsigned int present, r = 0;
  __builtin_memcpy(&word, &x, sizeof(T));
  const emu_u64* words = emu_exchange("__match_any_sync", mask, word, &present);
  for (int k = 0; k < 32; ++k) r |= (present >> k & 1u & (unsigned int)(words[k] == word)) << k;
  return r;
}
#define EMU_REDUCE(name, T, result) \
  EMU T name(unsigned int mask, T x) { \
    unsigned int present; \
    const emu_u64* words = emu_exchange(#name, mask, (emu_u64)x, &present); \
    T a = x; \
    bool first = true; \
    for (int k = 0; k < 32; ++k) \
      if (present >> k & 1u) { T b = (T)words[k]; a = first ? b : (T)(result); first = false; } \
    return a; \
  }
EMU_REDUCE(__reduce_add_sync, unsigned int, a + b)
EMU_REDUCE(__reduce_add_sync, int, (unsigned int)a + (unsigned int)b)
EMU_REDUCE(__reduce_min_sync, unsigned int, b < a ? b : a)
EMU_REDUCE(__reduce_min_sync, int, b < a ? b : a)
EMU_REDUCE(__reduce_max_sync, unsigned int, b > a ? b : a)
EMU_REDUCE(__reduce_max_sync, int, b > a ? b : a)
EMU_REDUCE(__reduce_and_sync, unsigned int, a & b)
EMU_REDUCE(__reduce_or_sync, unsigned int, a | b)
EMU_REDUCE(__reduce_xor_sync, unsigned int, a ^ b)
