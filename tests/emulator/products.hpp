// The matrix units: products of a warp, products of a warpgroup, and 8 x 8 matrices in shared memory. Lanes of a warp
// meet, and the last one that comes does the work of all.
#pragma once

namespace {

enum Kind { BF16, F16, TF32, I8 };
constexpr unsigned DEPTH[] = {16, 16, 8, 32};  // elements in 32 bytes
constexpr unsigned RESULT_POISON = 0x7fa5c3e1u;  // in results that are not there yet
constexpr unsigned QUEUE = 256, RESULTS = 16, LANE_RESULTS = 128;

typedef float Floats __attribute__((vector_size(32)));
typedef unsigned Words __attribute__((vector_size(32)));

// -- multiplication: 16 rows of 32 bytes by up to 256 columns of 32 bytes ---------------------------------------------

alignas(64) unsigned char left_bytes[16][32], right_bytes[256][32];
alignas(64) unsigned left[16][32], right[32][256], sums[16][256];
float halves[65536];

void know_halves() {
  if (halves[0x3c00] == 1.0f) return;
  for (unsigned h = 0; h < 65536; ++h) {
    unsigned size = h & 0x7fffu, sign = (h & 0x8000u) << 16, bits;
    float small = (float)size * 0x1p-24f;
    if (size < 0x400u) memcpy(&bits, &small, 4);
    else bits = size >= 0x7c00u ? (size > 0x7c00u ? 0x7fffffffu : 0x7f800000u) : (size << 13) + 0x38000000u;
    bits |= sign;
    memcpy(&halves[h], &bits, 4);
  }
}

// An element of a row of 32 bytes, as the bits of an f32 or i32.
unsigned element(Kind kind, const unsigned char* row, unsigned k) {
  unsigned short half;
  unsigned word;
  if (kind == I8) return (unsigned)(int)(signed char)row[k];
  if (kind == TF32) {
    memcpy(&word, row + 4 * k, 4);
    return word & 0xffffe000u;
  }
  memcpy(&half, row + 2 * k, 2);
  if (kind == BF16) return (unsigned)half << 16;
  memcpy(&word, &halves[half], 4);
  return word;
}

template <class T, class V> void multiply(unsigned columns, unsigned depth) {
  for (unsigned m = 0; m < 16; ++m)
    for (unsigned k = 0; k < depth; ++k) {
      T a;
      memcpy(&a, &left[m][k], 4);
      const V* b = (const V*)right[k];
      V* sum = (V*)sums[m];
      for (unsigned n = 0; n < columns / 8; ++n) sum[n] += a * b[n];
    }
}

// Adds to `sums` the product of `left_bytes` and `right_bytes`.
void add_product(Kind kind, unsigned columns) {
  if (kind == F16) know_halves();
  for (unsigned k = 0; k < DEPTH[kind]; ++k) {
    for (unsigned m = 0; m < 16; ++m) left[m][k] = element(kind, left_bytes[m], k);
    for (unsigned n = 0; n < columns; ++n) right[k][n] = element(kind, right_bytes[n], k);
  }
  if (kind == I8) multiply<unsigned, Words>(columns, DEPTH[kind]);
  else multiply<float, Floats>(columns, DEPTH[kind]);
}

// Result number `n` of a lane is at this row and column of `sums`.
unsigned& sum_of(unsigned lane, unsigned n) { return sums[lane / 4 + 8 * (n >> 1 & 1)][8 * (n / 4) + 2 * (lane % 4) + (n & 1)]; }

// The four registers of a lane's part of a left operand.
void take_left(unsigned lane, const unsigned* a) {
  for (unsigned k = 0; k < 4; ++k) memcpy(left_bytes[lane / 4 + 8 * (k & 1)] + 16 * (k >> 1) + 4 * (lane % 4), &a[k], 4);
}

// -- products of a warpgroup ------------------------------------------------------------------------------------------

struct Product {
  const char* what;
  Kind kind;
  unsigned columns, transposed, results, group;
  u64 a, b;
  bool keep;
  const unsigned* from[32];  // a left operand in registers: where they are in each lane, and what they held
  unsigned held[32][4];
};
// The results of products that are not waited for: where they belong in each lane, and how many products are to come.
struct Results {
  unsigned* d[32];
  unsigned count, uses;
};
struct Queue {
  unsigned count, group, issued, registers, waiting;  // waiting: lanes, until all warps have closed a group
  bool fenced;
  Product products[QUEUE];
  Results results[RESULTS];
  unsigned unfenced;     // lanes that have not fenced what the warp has stored
  u64 stored[SHARED / 16 / 64];  // the 16-byte rows of shared memory concerned
};
Queue queues[BLOCKS * WARPS];
unsigned (*held)[RESULTS][32][LANE_RESULTS];

struct Issue {
  const char* what;
  Kind kind;
  unsigned columns, transposed;
  unsigned* d;
  u64 a, b;
  bool keep;
  const unsigned* from;
};

Queue& queue_of(const Warp& w) { return queues[&w - warps]; }

// An operand of `rows` rows from `first` on: where a descriptor says, K-major or MN-major, with the 128-byte swizzle.
void fetch(const Block& block, u64 descriptor, bool transposed, unsigned first, unsigned rows, unsigned char (*to)[32],
           const char* what) {
  unsigned start = (unsigned)(descriptor & 0x3fff) << 4, lead = (unsigned)(descriptor >> 16 & 0x3fff) << 4,
           stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || descriptor >> 49 & 7) fail("%s: the descriptor has no 128-byte swizzle", what);
  if (start & (transposed ? 0x3ffu : 0x39fu))
    fail("%s: an operand at byte %u of shared memory, whose pattern starts at a multiple of 1024", what, start);
  if (stride % 1024 || (transposed && rows + first > 64 && lead % 1024))
    fail("%s: strides of %u and %u bytes between parts of 1024", what, lead, stride);
  auto chunk = [&](unsigned at) {
    at = swizzled(at, 128);
    if (at + 16 > job.shared) fail("%s reads byte %u of shared memory, which has %u", what, at, job.shared);
    return block.shared + at;
  };
  if (!transposed) {
    for (unsigned r = 0; r < rows; ++r)
      for (unsigned k = 0; k < 32; k += 16)
        memcpy(to[r] + k, chunk(start + (first + r) / 8 * stride + (first + r) % 8 * 128 + k), 16);
    return;
  }
  for (unsigned k = 0; k < 16; ++k)
    for (unsigned r = 0; r < rows; r += 8) {
      unsigned m = first + r;
      const unsigned char* from = chunk(start + m / 64 * lead + k / 8 * stride + k % 8 * 128 + m % 64 * 2);
      for (unsigned e = 0; e < 8; ++e) memcpy(to[r + e] + 2 * k, from + 2 * e, 2);
    }
}

// The oldest product is computed; results that no other one adds to reach their lanes.
void compute_oldest(Warp& w) {
  Queue& q = queue_of(w);
  unsigned number = (unsigned)(&w - warps), warp = number % job.warps;
  Product p = q.products[0];
  memmove(q.products, q.products + 1, --q.count * sizeof(Product));
  Results& r = q.results[p.results];
  auto& values = held[number][p.results];
  const Block& block = blocks[number / job.warps];
  if (!p.from[0]) fetch(block, p.a, p.transposed & 2, warp % 4 * 16, 16, left_bytes, p.what);
  for (unsigned l = 0; p.from[0] && l < 32; ++l) {
    if (memcmp(p.from[l], p.held[l], 16)) fail("%s: its left operand was changed before lf_mma_wait", p.what);
    take_left(l, p.held[l]);
  }
  fetch(block, p.b, p.transposed & 1, 0, p.columns, right_bytes, p.what);
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned n = 0; n < r.count; ++n) sum_of(l, n) = p.keep ? values[l][n] : 0;
  add_product(p.kind, p.columns);
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned n = 0; n < r.count; ++n) values[l][n] = sum_of(l, n);
  if (--r.uses) return;
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned n = 0; n < r.count; ++n) {
      if (r.d[l][n] != RESULT_POISON) fail("%s: its results were changed before lf_mma_wait", p.what);
      r.d[l][n] = values[l][n];
    }
}

void issue(Warp& w, u64* lanes) {
  Queue& q = queue_of(w);
  const Issue& first = *(const Issue*)lanes[0];
  if ((unsigned)(&w - warps) % job.warps >= job.warps / 4 * 4) fail("%s in a warp that is in no warpgroup", first.what);
  for (unsigned l = 1; l < 32; ++l) {
    const Issue& other = *(const Issue*)lanes[l];
    if (other.a != first.a || other.b != first.b || other.keep != first.keep)
      fail("%s with other operands in lane %u than in lane 0", first.what, l);
  }
  if (first.transposed && first.kind > F16) fail("%s: only 16-bit operands may be MN-major", first.what);
  if (!held) held = (decltype(held))reserve(sizeof(*held) * BLOCKS * WARPS);
  unsigned slot = RESULTS;
  for (unsigned k = 0; k < RESULTS; ++k)
    if (q.results[k].uses && q.results[k].d[0] == first.d) slot = k;
  if (slot == RESULTS) {
    if (!q.fenced) fail("%s without lf_mma_fence after lf_mma_wait or at the start", first.what);
    for (slot = 0; slot < RESULTS && q.results[slot].uses; ++slot) {}
    if (slot == RESULTS) fail("%s: results of more than %u products in flight", first.what, RESULTS);
    Results& r = q.results[slot];
    r.count = first.columns / 2;
    for (unsigned l = 0; l < 32; ++l) {
      r.d[l] = ((const Issue*)lanes[l])->d;
      for (unsigned n = 0; n < r.count; ++n) {
        held[&w - warps][slot][l][n] = r.d[l][n];
        r.d[l][n] = RESULT_POISON;
      }
    }
  }
  Results& r = q.results[slot];
  if (r.count != first.columns / 2) fail("%s adds to results of another shape in flight", first.what);
  ++r.uses;
  if (q.count == QUEUE) fail("%s: more than %u products in flight", first.what, QUEUE);
  Product& made = q.products[q.count++];
  made = Product{first.what, first.kind, first.columns, first.transposed, slot, 0, first.a, first.b, first.keep, {}, {}};
  for (unsigned l = 0; first.from && l < 32; ++l) {
    made.from[l] = ((const Issue*)lanes[l])->from;
    memcpy(made.held[l], made.from[l], 16);
  }
  ++q.issued;
  if (at_once(PRODUCT))
    while (q.count) compute_oldest(w);
}

// The first warp of the warpgroup.
Warp* warpgroup_of(Warp& w) { return &w - (unsigned)(&w - warps) % job.warps % 4; }

void close_group(Warp& w, u64*) {
  Queue& q = queue_of(w);
  for (Warp* other = warpgroup_of(w); other < warpgroup_of(w) + 4; ++other) {
    other->ready |= queue_of(*other).waiting;
    queue_of(*other).waiting = 0;
  }
  ++q.group;
  for (unsigned n = 0; n < q.count; ++n)
    if (!q.products[n].group) q.products[n].group = q.group;
}

// A product is one of all four warps: where one of them has waited for it, it has ended for the others as well.
void wait_for(Warp& w, u64* lanes) {
  u64 last = queue_of(w).group;
  for (Warp* other = warpgroup_of(w); other < warpgroup_of(w) + 4; ++other) {
    Queue& q = queue_of(*other);
    while (q.count && q.products[0].group && q.products[0].group + lanes[0] <= last) compute_oldest(*other);
  }
  queue_of(w).fenced = false;
}

bool all_have_closed(Warp& w, unsigned group) {
  for (Warp* other = warpgroup_of(w); other < warpgroup_of(w) + 4; ++other)
    if (queue_of(*other).group < group) return false;
  return true;
}

void fence(Warp& w, u64*) { queue_of(w).fenced = true; }

// -- products of a warp, and matrices in shared memory ----------------------------------------------------------------

struct Operands {
  Kind kind;
  unsigned* d;
  const unsigned *a, *b;
};

void multiply_warp(Warp&, u64* lanes) {
  for (unsigned l = 0; l < 32; ++l) {
    const Operands& o = *(const Operands*)lanes[l];
    take_left(l, o.a);
    for (unsigned k = 0; k < 2; ++k) memcpy(right_bytes[l / 4] + 16 * k + 4 * (l % 4), &o.b[k], 4);
    for (unsigned n = 0; n < 4; ++n) sum_of(l, n) = o.d[n];
  }
  add_product(((const Operands*)lanes[0])->kind, 8);
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned n = 0; n < 4; ++n) ((const Operands*)lanes[l])->d[n] = sum_of(l, n);
}

// Doubles, by halves of 8 rows: lane l has element l % 4 of the sum of row l / 4 of each and of column l / 4, and the results
// of its row at columns 2 (l % 4) and the next one.
struct Doubles {
  double* d;
  const double* a;
  double b;
  unsigned halves;
};

void multiply_doubles(Warp&, u64* lanes) {
  auto of = [&](unsigned l) -> const Doubles& { return *(const Doubles*)lanes[l]; };
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned n = 0; n < 2 * of(l).halves; ++n)
      for (unsigned k = 0; k < 4; ++k)
        of(l).d[n] = __builtin_fma(of(l / 4 * 4 + k).a[n / 2], of((l % 4 * 2 + n % 2) * 4 + k).b, of(l).d[n]);
}

struct Matrices {
  unsigned char* row;
  unsigned* words;
  unsigned at;
};

const Matrices& lane_of(u64* lanes, unsigned l) { return *(const Matrices*)lanes[l]; }

void load_matrices(Warp&, u64* lanes) {
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned m = 0; m < 4; ++m)
      memcpy(&lane_of(lanes, l).words[m], lane_of(lanes, 8 * m + l / 4).row + 4 * (l % 4), 4);
}

void load_transposed(Warp&, u64* lanes) {
  for (unsigned l = 0; l < 32; ++l)
    for (unsigned m = 0; m < 4; ++m)
      for (unsigned e = 0; e < 2; ++e)
        memcpy((unsigned char*)&lane_of(lanes, l).words[m] + 2 * e,
               lane_of(lanes, 8 * m + 2 * (l % 4) + e).row + 2 * (l / 4), 2);
}

void store_matrices(Warp& w, u64* lanes) {
  Queue& q = queue_of(w);
  q.unfenced = ~0u;
  for (unsigned l = 0; l < 32; ++l) {
    unsigned row = lane_of(lanes, l).at / 16;
    q.stored[row / 64] |= 1ull << row % 64;
    for (unsigned m = 0; m < 4; ++m)
      memcpy(lane_of(lanes, 8 * m + l / 4).row + 4 * (l % 4), &lane_of(lanes, l).words[m], 4);
  }
}

// What lf_store_matrix4 wrote reaches copies of tiles only after a fence.
void check_fenced(const Block& block, unsigned at, unsigned bytes, const char* what) {
  for (unsigned k = 0; k < job.warps; ++k) {
    const Queue& q = queues[block.rank * job.warps + k];
    if (!q.unfenced) continue;
    for (unsigned row = at / 16; row < (at + bytes) / 16; ++row)
      if (q.stored[row / 64] >> row % 64 & 1)
        fail("%s of byte %u of shared memory, which warp %u wrote without lf_async_fence", what, row * 16, k);
  }
}

// -- the life of a block ----------------------------------------------------------------------------------------------

void forget_products() {
  for (unsigned n = 0; n < job.warps * job.cluster; ++n) {
    Queue& q = queues[n];
    q.count = q.group = q.issued = q.registers = q.waiting = 0;
    q.fenced = false;
    for (Results& r : q.results) r.uses = 0;
    if (q.unfenced) memset(q.stored, 0, sizeof q.stored);
    q.unfenced = 0;
  }
}

void check_products_of(const Fiber* f) {
  if (queue_of(*f->warp).count) fail("a thread leaves, and lf_mma_wait has not waited for all products");
}

void check_products(const Block& block) {
  u64 registers = 0;
  for (unsigned k = 0; k < job.warps; ++k) {
    const Queue &q = queues[block.rank * job.warps + k], &first = queues[block.rank * job.warps + k / 4 * 4];
    if (q.issued != first.issued)
      fail("warps of one warpgroup issue %u products and %u", first.issued, q.issued);
    registers += q.registers ? q.registers : 65536 / job.threads / 8 * 8;
  }
  if (registers * 32 > 65536) fail("warps ask for %llu registers of 65536", registers * 32);
}

}  // namespace

// -- what kernels call ------------------------------------------------------------------------------------------------

extern "C" void emu_mma_group(const char* what, int kind, unsigned columns, unsigned transposed, void* d, u64 a, u64 b, bool keep,
                              const unsigned* from) {
  Issue mine{what, (Kind)kind, columns, transposed, (unsigned*)d, a, b, keep, from};
  meet(what, ~0u, (u64)(uintptr_t)&mine, issue);
}

extern "C" void emu_mma_fence() { meet("lf_mma_fence", ~0u, 0, fence); }
extern "C" void emu_mma_end() { meet("lf_mma_end", ~0u, 0, close_group); }

extern "C" void emu_mma_wait(int left) {
  Fiber* me = me_in("lf_mma_wait");
  Queue& q = queue_of(*me->warp);
  while (q.group > (unsigned)left && !all_have_closed(*me->warp, q.group - (unsigned)left)) {
    q.waiting |= me->bit;
    park(me, "lf_mma_wait, for the other warps of the warpgroup");
  }
  meet("lf_mma_wait", ~0u, (u64)left, wait_for);
}

extern "C" void emu_mma_warp(const char* what, int kind, void* d, const unsigned* a, const unsigned* b) {
  Operands mine{(Kind)kind, (unsigned*)d, a, b};
  meet(what, ~0u, (u64)(uintptr_t)&mine, multiply_warp);
}

extern "C" void emu_mma_double(const char* what, double* d, const double* a, double b, unsigned halves) {
  Doubles mine{d, a, b, halves};
  meet(what, ~0u, (u64)(uintptr_t)&mine, multiply_doubles);
}

extern "C" void emu_matrix_move(const char* what, const void* p, unsigned* words, int how) {
  Matrices mine{(unsigned char*)p, words, shared_at(p, 16, 16, what)};
  meet(what, ~0u, (u64)(uintptr_t)&mine, how == 0 ? load_matrices : how == 1 ? load_transposed : store_matrices);
}

extern "C" void emu_async_fence() {
  Fiber* me = me_in("lf_async_fence");
  Queue& q = queue_of(*me->warp);
  if (!q.unfenced) return;
  q.unfenced &= ~me->bit;
  if (!q.unfenced) memset(q.stored, 0, sizeof q.stored);
}

extern "C" void emu_registers_set(int count) {
  if (count < 24 || count > 256 || count % 8) fail("setmaxnreg to %d registers", count);
  queue_of(*me_in("setmaxnreg")->warp).registers = (unsigned)count;
}
