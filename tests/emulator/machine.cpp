// Runs a kernel's threads on one CPU thread. A thread of a kernel is a fiber: it runs until it waits at a barrier or a
// shuffle, then another one of its warp goes on, then other warps. All blocks of a cluster are on stage together. Where
// nobody can go on and somebody waits, the kernel is wrong and the report says who waits where.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "context.hpp"

typedef unsigned long long u64;
struct uint3 { unsigned int x, y, z; };
struct dim3 { unsigned int x, y, z; };
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr unsigned THREADS = 1024, WARPS = THREADS / 32, BLOCKS = 16, BARRIERS = 17, CLUSTER = 16;
constexpr unsigned FEW_STACKS = 16;  // that stay for the next launch
constexpr size_t STACK = 68 << 10, PAGE = 4096, SHARED = 256 << 10;

// -- who is on stage --------------------------------------------------------------------------------------------------

// An exchange among lanes of a warp; two sets of values, so that a lane may be one exchange ahead of another.
struct Exchange {
  const char* what;
  unsigned mask, arrived, turn, present[2];
  u64 values[2][32];
};
struct Warp;
struct Block;
struct Fiber {
  Context context;
  const char* waits;  // what for, nullptr: it can go on
  Warp* warp;
  Block* block;
  unsigned thread, lane, bit;
  bool left;
};
struct Warp {
  unsigned live, ready;
  Fiber* fibers;
  unsigned pending;  // the exchanges that some lane waits in
  unsigned barred[BARRIERS], came[BARRIERS];  // lanes that wait at a barrier, and those that came and went on
  Exchange exchanges[32];  // by the lowest lane of the mask
};
struct Block {
  uint3 index;
  unsigned rank;
  unsigned char* shared;
  unsigned arrived[BARRIERS], wanted[BARRIERS], flags[2], turn, live;
};

Fiber fibers[BLOCKS * THREADS];
Warp warps[BLOCKS * WARPS];
Block blocks[BLOCKS];
unsigned char* stacks;
unsigned stacked;  // fibers that have a stack and stand at their start
unsigned char* shared_base[BLOCKS];
unsigned shared_size, shared_count;
unsigned at_cluster_barrier;

Context stage;  // who runs the fibers
Fiber* current;
sigjmp_buf failed;
char* message;
size_t message_size;
void* fault_address;
int fault_kind;
long running;  // the thread of the process that runs a kernel

struct Job {
  void (*one)(void**);
  void (*all)(void**, unsigned, unsigned);
  void** arguments;
  unsigned threads, shared, alignment, cluster, warps;
  int order;
  u64 random;
  int poison;
} job;

unsigned char no_shared[16];

}  // namespace

extern "C" {
extern unsigned char* emu_shared;
extern u64 emu_stages;
unsigned char* emu_shared = no_shared;
u64 emu_stages;  // how often blocks have come on stage
}

namespace {

u64 draw() {
  job.random ^= job.random << 13;
  job.random ^= job.random >> 7;
  job.random ^= job.random << 17;
  return job.random;
}

[[noreturn]] void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, message_size, format, arguments);
  va_end(arguments);
  siglongjmp(failed, 1);
}

unsigned lane() { return threadIdx.x & 31u; }

unsigned choose(unsigned ready) {
  if (job.order == 0) return (unsigned)__builtin_ctz(ready);
  if (job.order == 1) return 31u - (unsigned)__builtin_clz(ready);
  unsigned skip = (unsigned)(draw() % (unsigned)__builtin_popcount(ready));
  while (skip--) ready &= ready - 1;
  return (unsigned)__builtin_ctz(ready);
}

bool advance();  // something that goes on beside the threads happens
void check_copies_of(const Fiber* f);
void check_products_of(const Fiber* f);
void check_fenced(const Block& block, unsigned at, unsigned bytes, const char* what);
void come(unsigned id, unsigned threads, bool waits);
void start();

Fiber* take(Warp& w) {
  unsigned l = choose(w.ready);
  w.ready &= ~(1u << l);
  return w.fibers + l;
}

// The fiber to go on with where this warp has none: of the next warp that has one; nullptr where there is none.
__attribute__((noinline)) Fiber* pick_elsewhere(unsigned at) {
  unsigned count = job.warps * job.cluster;
  if (job.order == 2 && !(draw() & 3)) at = (unsigned)(draw() % count);
  if (job.order == 2 && !(draw() & 7)) advance();
  do
    for (unsigned k = 0; k < count; ++k) {
      if (warps[at].ready) return take(warps[at]);
      at = job.order == 1 ? (at ? at : count) - 1 : at + 1 == count ? 0 : at + 1;
    }
  while (advance());
  return nullptr;
}

inline Fiber* pick(Warp& w) { return w.ready && job.order != 2 ? take(w) : pick_elsewhere((unsigned)(&w - warps)); }

inline void go(Context& from, Fiber* next) {
  current = next;
  if (!next) {
    enter(from, stage);
    return;
  }
  threadIdx.x = next->thread;
  if (job.cluster > 1) {
    blockIdx = next->block->index;
    emu_shared = next->block->shared;
  }
  if (&from != &next->context) enter(from, next->context);
}

inline void park(Fiber* me, const char* what) {
  me->waits = what;
  go(me->context, pick(*me->warp));
  me->waits = nullptr;
}

void release(Warp& w, Exchange& e) {
  e.present[e.turn & 1] = e.arrived;
  w.ready |= e.arrived;
  w.pending &= ~(1u << (&e - w.exchanges));
  e.arrived = 0;
  ++e.turn;
}

void leave() {
  Fiber* me = current;
  Warp& w = *me->warp;
  check_copies_of(me);
  check_products_of(me);
  me->left = true;
  w.live &= ~me->bit;
  for (unsigned left = w.pending; left; left &= left - 1) {
    Exchange& e = w.exchanges[__builtin_ctz(left)];
    if (e.arrived == (e.mask & w.live)) release(w, e);
  }
  if (--me->block->live == 0 && job.cluster > 1)  // what is read from here now is a mistake
    memset(me->block->shared, job.poison, job.shared);
  go(me->context, pick(w));
}

void start() {
  for (;;) {
    job.one(job.arguments);
    leave();
  }
}

// Lanes of a warp meet, each with a value; the values of all. With `work` all lanes of `mask` must come, and the last one
// does it before anybody goes on.
const u64* meet(const char* what, unsigned mask, u64 value, void (*work)(Warp&, u64*),
                unsigned* present = nullptr) {
  Fiber* me = current;
  if (!me) fail("%s in a kernel that was taken to have none", what);
  Warp& w = *me->warp;
  if (!(mask & me->bit)) fail("%s with mask 0x%x, which leaves out the caller", what, mask);
  Exchange& e = w.exchanges[__builtin_ctz(mask)];
  if (!e.arrived) {
    e.what = what;
    e.mask = mask;
    w.pending |= 1u << __builtin_ctz(mask);
  } else if (e.mask != mask || (e.what != what && strcmp(e.what, what))) {
    fail("lanes of one warp meet at %s with mask 0x%x and at %s with mask 0x%x", e.what, e.mask, what, mask);
  }
  unsigned turn = e.turn & 1;
  e.values[turn][me->lane] = value;
  e.arrived |= me->bit;
  if (e.arrived == (mask & w.live)) {
    if (work && e.arrived == mask) work(w, e.values[turn]);
    release(w, e);
    w.ready &= ~me->bit;
  } else {
    park(me, what);
  }
  if (work && e.present[turn] != mask) fail("not all lanes of a warp are there at %s", what);
  if (present) *present = e.present[turn];
  return e.values[turn];
}

}  // namespace

#include "reports.hpp"
#include "stacks.hpp"
#include "tiles.hpp"
#include "products.hpp"
#include "checks.hpp"

namespace {

void reset() {  // after a failure nobody goes on where he stood
  stacked = 0;
  memset(warps, 0, sizeof warps);
  for (Block& b : blocks) memset(b.arrived, 0, sizeof b.arrived), b.flags[0] = b.flags[1] = 0;
  at_cluster_barrier = 0;
  current = nullptr;
}

// An order of `count` things: from `at`, in steps of `step`, modulo their number.
struct Walk { u64 at, step; };

u64 gcd(u64 a, u64 b) { return b ? gcd(b, a % b) : a; }

Walk walk(u64 count) {
  if (job.order == 0) return {0, 1};
  if (job.order == 1) return {count - 1, count - 1};
  Walk w{draw() % count, 0};
  do w.step = draw() % count; while (gcd(w.step, count) != 1);
  return w;
}

// -- running ----------------------------------------------------------------------------------------------------------

void run_stage(u64 first) {
  ++emu_stages;
  for (unsigned b = 0; b < job.cluster; ++b) {
    u64 id = first + b;
    Block& block = blocks[b];
    block.rank = b;
    block.index.x = (unsigned)(id % gridDim.x);
    block.index.y = (unsigned)(id / gridDim.x % gridDim.y);
    block.index.z = (unsigned)(id / gridDim.x / gridDim.y);
    block.live = job.threads;
    memset(block.arrived, 0, sizeof block.arrived);
    poison_shared(block);
  }
  blockIdx = blocks[0].index;
  emu_shared = blocks[0].shared;
  if (job.all) {
    Walk w = walk(job.threads);
    job.all(job.arguments, (unsigned)w.at, (unsigned)w.step);
    check_past_shared(blocks[0]);
    return;
  }
  forget_copies();
  forget_products();
  for (unsigned b = 0; b < job.cluster; ++b)
    for (unsigned k = 0; k < job.warps; ++k) {
      Warp& w = warps[b * job.warps + k];
      unsigned lanes = job.threads - 32 * k;
      w.live = w.ready = lanes >= 32 ? ~0u : (1u << lanes) - 1;
      w.fibers = &fibers[b * THREADS + 32 * k];
      memset(w.came, 0, sizeof w.came);
      for (unsigned l = 0; l < 32 && l < lanes; ++l) {
        Fiber& f = fibers[b * THREADS + 32 * k + l];
        f.left = false;
        f.waits = nullptr;
        f.warp = &w;
      }
    }
  unsigned count = job.warps * job.cluster;
  go(stage, pick(warps[job.order == 1 ? count - 1 : 0]));
  for (unsigned b = 0; b < job.cluster; ++b)
    if (blocks[b].live) stuck();
  for (unsigned b = 0; b < job.cluster; ++b) {
    check_copies(blocks[b]);
    check_products(blocks[b]);
    check_past_shared(blocks[b]);
  }
}

void run_grid() {
  u64 count = (u64)gridDim.x * gridDim.y * gridDim.z / job.cluster;
  Walk w = walk(count);
  for (u64 k = 0; k < count; ++k, w.at = (w.at + w.step) % count) run_stage(w.at * job.cluster);
}

}  // namespace

// -- what kernels call ------------------------------------------------------------------------------------------------

extern "C" void emu_fail(const char* text) { fail("%s", text); }

extern "C" const u64* emu_exchange(const char* what, unsigned mask, u64 value, unsigned* present) {
  return meet(what, mask, value, nullptr, present);
}

namespace {

void free_barred(Warp* from, unsigned count, unsigned id) {
  for (Warp* w = from; w < from + count; ++w) {
    w->ready |= w->barred[id];
    w->barred[id] = w->came[id] = 0;
  }
  current->warp->ready &= ~current->bit;
}

void come(unsigned id, unsigned threads, bool waits) {
  Fiber* me = current;
  Block& block = *me->block;
  if (block.arrived[id] && block.wanted[id] != threads)
    fail("barrier %u is for %u threads and for %u", id, block.wanted[id], threads);
  if (me->warp->came[id] & me->bit) fail("a thread comes to barrier %u twice before the others have come", id);
  block.wanted[id] = threads;
  (waits ? me->warp->barred : me->warp->came)[id] |= me->bit;
  if (++block.arrived[id] == threads) {
    block.arrived[id] = 0;
    free_barred(warps + block.rank * job.warps, job.warps, id);
  } else if (waits) {
    park(me, id ? "a barrier of some threads" : "a barrier of the block");
  }
}

}  // namespace

extern "C" void emu_barrier(unsigned id, unsigned threads) {
  if (!current) fail("a barrier in a kernel that was taken to have none");
  if (id >= CLUSTER) fail("there is no barrier %u", id);
  come(id, threads ? threads : job.threads, true);
}

extern "C" unsigned emu_count(bool flag) {
  if (!current) fail("a barrier in a kernel that was taken to have none");
  Block& block = *current->block;
  unsigned turn = block.turn & 1;
  block.flags[turn] += flag;
  if (block.arrived[0] + 1 == job.threads) ++block.turn, block.flags[block.turn & 1] = 0;
  emu_barrier(0, 0);
  return block.flags[turn];
}

extern "C" unsigned emu_lane() { return lane(); }
extern "C" unsigned emu_active() { return current ? current->warp->live : 1u << lane(); }
extern "C" unsigned emu_cluster_rank() { return current ? current->block->rank : blockIdx.x % job.cluster; }
extern "C" unsigned emu_cluster_size() { return job.cluster; }

extern "C" void emu_cluster_sync() {
  Fiber* me = current;
  if (!me) fail("a barrier in a kernel that was taken to have none");
  me->warp->barred[CLUSTER] |= me->bit;
  if (++at_cluster_barrier == job.threads * job.cluster) {
    at_cluster_barrier = 0;
    free_barred(warps, job.warps * job.cluster, CLUSTER);
  } else {
    park(me, "a barrier of the cluster");
  }
}

extern "C" void* emu_cluster_at(void* p, unsigned rank) {
  size_t offset = (size_t)((unsigned char*)p - emu_shared);
  if (offset > job.shared) fail("lf_cluster_at of a pointer that is not into shared memory");
  if (rank >= job.cluster) fail("lf_cluster_at of block %u in a cluster of %u", rank, job.cluster);
  if (current && !blocks[rank].live) fail("lf_cluster_at of block %u, which has left", rank);
  return blocks[rank].shared + offset;
}

// -- what Python calls ------------------------------------------------------------------------------------------------

// Runs a kernel; 0, or 1 with the reason in `text`, and in `fault` the address and whether it was written (1) or read.
EXPORT int emu_run(void (*one)(void**), void (*all)(void**, unsigned, unsigned), void** arguments, const unsigned* grid, unsigned threads,
                   unsigned shared, unsigned alignment, unsigned cluster, int order, u64 seed, int poison, double seconds, char* text,
                   size_t text_size, u64* fault) {
  job = Job{one, all, arguments, threads, shared, alignment, cluster, (threads + 31) / 32, order, seed | 1, poison};
  gridDim = dim3{grid[0], grid[1], grid[2]};
  blockDim = dim3{threads, 1, 1};
  threadIdx = uint3{0, 0, 0};
  message = text;
  message_size = text_size;
  text[0] = 0;
  running = syscall(SYS_gettid);
  fault_kind = 0;
  static unsigned char signal_stack[64 << 10];
  stack_t on{}, off{};
  on.ss_sp = signal_stack;
  on.ss_size = sizeof signal_stack;
  sigaltstack(&on, &off);
  const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
  struct sigaction ours {}, before[5];
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int k = 0; k < 5; ++k) sigaction(numbers[k], &ours, &before[k]);
  itimerval limit{}, none{};
  limit.it_value.tv_sec = (time_t)seconds;
  limit.it_value.tv_usec = (suseconds_t)((seconds - (double)limit.it_value.tv_sec) * 1e6);
  setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  int result = 1;
  if (!sigsetjmp(failed, 1)) {
    if (!all) give_stacks((cluster - 1) * THREADS + threads);
    give_shared();
    run_grid();
    result = 0;
  } else {
    const char* what = fault_kind == SIGVTALRM ? "it did not end in the time allowed"
                       : fault_kind == SIGFPE  ? "a division of integers by zero"
                       : fault_kind == SIGILL  ? "an illegal instruction"
                       : fault_kind            ? "an access outside its memory"
                                               : nullptr;
    if (what) snprintf(message, message_size, "%s", what);
    fault[0] = fault_kind < 0 || fault_kind == SIGSEGV || fault_kind == SIGBUS ? (u64)(uintptr_t)fault_address : 0;
    fault[1] = fault_kind == -1;
    fault[2] = blockIdx.x;
    fault[3] = blockIdx.y;
    fault[4] = blockIdx.z;
    fault[5] = threadIdx.x;
    fault[6] = (u64)(uintptr_t)emu_shared;
    return_stacks();
    reset();
  }
  return_stacks();
  setitimer(ITIMER_VIRTUAL, &none, nullptr);
  for (int k = 0; k < 5; ++k) sigaction(numbers[k], &before[k], nullptr);
  sigaltstack(&off, nullptr);
  return result;
}
