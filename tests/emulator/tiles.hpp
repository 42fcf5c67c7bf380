// Barriers in shared memory, and copies of tiles, which go on beside the threads: each happens at once in one order of
// execution, and in another as late as it may, so that who does not wait for them gets other results.
#pragma once

namespace {

enum Async { LOAD, STORE, PRODUCT };

// Loads fill their place at once where products read theirs late, and the other way round.
bool at_once(Async what) { return job.order == 2 ? draw() >> 20 & 1 : (job.order == 0) != (what == PRODUCT); }

unsigned fiber_number(const Fiber* f) { return (unsigned)(f - fibers); }

Fiber* me_in(const char* what) {
  if (!current) fail("%s in a kernel that was taken to have no such thing", what);
  return current;
}

// Where a pointer is in the shared memory of the present block.
unsigned shared_at(const void* p, size_t bytes, unsigned alignment, const char* what) {
  size_t at = (size_t)((const unsigned char*)p - emu_shared);
  if (at > job.shared || bytes > job.shared - at)
    fail("%s of %zu bytes at byte %lld of shared memory, which has %u", what, bytes, (long long)at, job.shared);
  if (at % alignment) fail("%s at byte %zu of shared memory, not a multiple of %u", what, at, alignment);
  return (unsigned)at;
}

// -- barriers ---------------------------------------------------------------------------------------------------------

struct Bar {
  unsigned at, count, pending, phase;
  long bytes;        // that are still to come in this phase
  Fiber* unready;    // who made it and has not yet called lf_bar_ready
  unsigned waiting[WARPS];
  char names[2][64];  // what a thread waits for, by the parity
};
constexpr unsigned BARS = 256;
constexpr u64 BAR_MARK = 0x5ba77e5dull << 32;  // stands in shared memory where a barrier is, with its number
Bar bars[BLOCKS][BARS];
unsigned bar_count[BLOCKS];

Block& home(const void* p) {
  for (unsigned b = 0; b < job.cluster; ++b)
    if ((size_t)((const unsigned char*)p - blocks[b].shared) < job.shared) return blocks[b];
  fail("a barrier that is not in shared memory");
}

Bar& bar_at(const void* p, const char* what) {
  me_in(what);
  Block& block = home(p);
  unsigned at = (unsigned)((const unsigned char*)p - block.shared);
  if (at % 8 || at + 8 > job.shared) fail("%s at byte %u of shared memory, where no barrier can be", what, at);
  u64 word;
  memcpy(&word, p, 8);
  Bar* all = bars[block.rank];
  unsigned n = (unsigned)word, count = bar_count[block.rank];
  if (word >> 32 == BAR_MARK >> 32 && n < count && all[n].at == at) return all[n];
  for (n = 0; n < count; ++n)
    if (all[n].at == at) fail("%s: the barrier at byte %u of shared memory was overwritten", what, at);
  fail("%s: the barrier at byte %u of shared memory is used before lf_bar_init", what, at);
}

void settle(Bar& bar) {
  if (!bar.pending && bar.bytes < 0)
    fail("%ld bytes more than expected come to the barrier at byte %u of shared memory", -bar.bytes, bar.at);
  if (bar.pending || bar.bytes) return;
  bar.phase ^= 1;
  bar.pending = bar.count;
  Block& block = blocks[(unsigned)((&bar - bars[0]) / BARS)];
  for (unsigned k = 0; k < job.warps; ++k) {
    warps[block.rank * job.warps + k].ready |= bar.waiting[k];
    bar.waiting[k] = 0;
  }
}

void arrive(Bar& bar) {
  if (!bar.pending)
    fail("more than %u arrivals in one phase of the barrier at byte %u of shared memory", bar.count, bar.at);
  --bar.pending;
  settle(bar);
}

// -- values for other blocks -------------------------------------------------------------------------------------------

struct Send {
  Block* block;  // who gets it
  unsigned at, bytes;
  Bar* bar;
  u64 value;
};
constexpr unsigned SENDS = 1 << 15;
Send sends[SENDS];
unsigned send_count;

void carry_out_send(unsigned n) {
  Send s = sends[n];
  memmove(sends + n, sends + n + 1, (--send_count - n) * sizeof(Send));
  if (!s.block->live) fail("what lf_send sends to byte %u of shared memory comes when that block has left", s.at);
  memcpy(s.block->shared + s.at, &s.value, s.bytes);
  s.bar->bytes -= s.bytes;
  settle(*s.bar);
}

// -- copies of tiles --------------------------------------------------------------------------------------------------

// What `tilemaps.py` makes of a `TileMap`.
struct Map {
  unsigned char* base;
  unsigned char rank, item, swizzle, unused;
  unsigned mark;
  long long extents[5], steps[4];
  u64 box[5];
};
static_assert(sizeof(Map) == 128, "a map has 128 bytes");
constexpr unsigned MAP_MARK = 0x711e3a9u;

struct Copy {
  Map map;
  long long at[5];
  unsigned shared, bytes, group;  // of a store: the number of its group, 0 before lf_tile_store_end
  Block* block;
  Bar* bar;
  unsigned fiber;
  bool done;
};
constexpr unsigned COPIES = 2048;
Copy loads[COPIES], stores[COPIES];
unsigned load_count, store_count;
unsigned groups[BLOCKS * THREADS];  // that a thread has closed

Copy copy_of(const char* what, const void* map, const void* shared, const int* at, unsigned rank) {
  Copy c{};
  c.fiber = fiber_number(me_in(what));
  memcpy(&c.map, map, sizeof c.map);
  if (c.map.mark != MAP_MARK) fail("%s with something that is not a tile map", what);
  if (c.map.rank != rank) fail("%s of a map of %u axes", what, c.map.rank);
  c.bytes = c.map.item;
  for (unsigned k = 0; k < rank; ++k) {
    if (!c.map.extents[k]) fail("%s of an array without elements", what);
    c.bytes *= (unsigned)c.map.box[k];
    c.at[k] = at[k];
  }
  c.shared = shared_at(shared, c.bytes, 128, what);
  c.block = current->block;
  return c;
}

// Bits of the address of a 16-byte chunk that the swizzle changes: those from 4 on, by those from 7 on.
unsigned swizzled(unsigned at, unsigned pattern) {
  unsigned mask = pattern == 128 ? 7u : pattern == 64 ? 3u : pattern == 32 ? 1u : 0u;
  return at ^ (at >> 7 & mask) << 4;
}

void carry_out(const Copy& c, bool load) {
  const Map& m = c.map;
  unsigned row_bytes = (unsigned)m.box[0] * m.item, rows = c.bytes / row_bytes;
  unsigned char row[2048];
  long long first = c.at[0] < 0 ? -c.at[0] : 0, end = m.extents[0] - c.at[0];
  if (end > (long long)m.box[0]) end = (long long)m.box[0];
  for (unsigned r = 0; r < rows; ++r) {
    long long offset = c.at[0] * m.item, rest = r;
    bool inside = first < end;
    for (unsigned k = 1; k < m.rank; ++k) {
      long long x = c.at[k] + rest % (long long)m.box[k];
      rest /= (long long)m.box[k];
      inside = inside && x >= 0 && x < m.extents[k];
      offset += x * m.steps[k - 1];
    }
    unsigned char *global = m.base + offset + first * m.item, *part = row + first * m.item;
    unsigned at = c.shared + r * row_bytes;
    if (load) {
      memset(row, 0, row_bytes);
      if (inside) memcpy(part, global, (size_t)((end - first) * m.item));
      for (unsigned k = 0; k < row_bytes; k += 16) memcpy(c.block->shared + swizzled(at + k, m.swizzle), row + k, 16);
    } else if (inside) {
      for (unsigned k = 0; k < row_bytes; k += 16) memcpy(row + k, c.block->shared + swizzled(at + k, m.swizzle), 16);
      memcpy(global, part, (size_t)((end - first) * m.item));
    }
  }
}

void carry_out_load(unsigned n) {
  Copy c = loads[n];
  memmove(loads + n, loads + n + 1, (--load_count - n) * sizeof(Copy));
  carry_out(c, true);
  c.bar->bytes -= c.bytes;
  settle(*c.bar);
}

// Something that goes on beside the threads happens; false where there is nothing. What was sent last may come first.
bool advance() {
  if (send_count && (!load_count || job.order != 2 || draw() & 1)) {
    carry_out_send(job.order == 2 ? (unsigned)(draw() % send_count) : send_count - 1);
    return true;
  }
  if (!load_count) return false;
  unsigned n = job.order == 2 ? (unsigned)(draw() % load_count) : 0;
  if (!loads[n].block->live) return false;
  carry_out_load(n);
  return true;
}

void finish_stores(unsigned left) {
  unsigned me = fiber_number(current), kept = 0;
  for (unsigned n = 0; n < store_count; ++n) {
    Copy& c = stores[n];
    if (c.fiber == me && c.group && c.group + left <= groups[me]) {
      if (!c.done) carry_out(c, false);
    } else {
      if (kept != n) stores[kept] = c;
      ++kept;
    }
  }
  store_count = kept;
}

// -- the life of a block ----------------------------------------------------------------------------------------------

void forget_copies() {
  load_count = store_count = send_count = 0;
  memset(groups, 0, sizeof groups);
  memset(bar_count, 0, sizeof bar_count);
}

void check_copies_of(const Fiber* f) {
  for (unsigned n = 0; n < store_count; ++n)
    if (stores[n].fiber == fiber_number(f))
      fail("a thread leaves, and lf_tile_store_read has not waited for all of its tile stores");
}

void check_copies(const Block& block) {
  for (unsigned n = 0; n < load_count; ++n)
    if (loads[n].block == &block)
      fail("nobody has waited for a tile load, which fills shared memory from byte %u", loads[n].shared);
  for (unsigned n = 0; n < send_count; ++n)
    if (sends[n].block == &block) fail("nobody has waited for what lf_send sends to byte %u of shared memory", sends[n].at);
  for (unsigned n = 0; n < bar_count[block.rank]; ++n) {
    const Bar& bar = bars[block.rank][n];
    if (bar.bytes)
      fail("the barrier at byte %u of shared memory is left with %ld bytes that did not come", bar.at, bar.bytes);
  }
}

}  // namespace

// -- what kernels call ------------------------------------------------------------------------------------------------

extern "C" unsigned emu_shared_at(const void* p) { return shared_at(p, 0, 1, "the shared address"); }

extern "C" void emu_bar_init(u64* p, unsigned count) {
  Fiber* me = me_in("lf_bar_init");
  Block& block = *me->block;
  unsigned at = shared_at(p, 8, 8, "lf_bar_init"), &n = bar_count[block.rank];
  if (!count || count >= 1u << 20) fail("lf_bar_init for %u arrivals", count);
  for (unsigned k = 0; k < n; ++k)
    if (bars[block.rank][k].at == at) fail("lf_bar_init at byte %u of shared memory for the second time", at);
  if (n == BARS) fail("more than %u barriers in shared memory", BARS);
  Bar& bar = bars[block.rank][n];
  bar = Bar{at, count, count, 0, 0, me, {}, {}};
  for (unsigned k = 0; k < 2; ++k)
    snprintf(bar.names[k], sizeof bar.names[k], "the barrier at byte %u of shared memory, parity %u", at, k);
  *p = BAR_MARK | n++;
}

extern "C" void emu_bar_ready() {
  Fiber* me = me_in("lf_bar_ready");
  for (unsigned n = 0; n < bar_count[me->block->rank]; ++n) {
    Bar& bar = bars[me->block->rank][n];
    if (bar.unready == me) bar.unready = nullptr;
  }
}

extern "C" void emu_bar_expect(u64* p, unsigned bytes) {
  Bar& bar = bar_at(p, "lf_bar_expect");
  bar.bytes += bytes;
  if (bar.bytes >= 1 << 20) fail("lf_bar_expect: a barrier counts to 1048575 bytes, not to %ld", bar.bytes);
  arrive(bar);
}

extern "C" void emu_bar_arrive(u64* p) { arrive(bar_at(p, "lf_bar_arrive")); }

extern "C" void emu_bar_wait(u64* p, unsigned parity) {
  Bar& bar = bar_at(p, "lf_bar_wait");
  Fiber* me = current;
  if (&home(p) != me->block) fail("lf_bar_wait at the barrier of another block");
  if (parity > 1) fail("lf_bar_wait for the parity %u", parity);
  while ((bar.phase & 1) == parity) {
    bar.waiting[me->warp - warps - me->block->rank * job.warps] |= me->bit;
    park(me, bar.names[parity]);
  }
}

extern "C" void* emu_cluster_at(void* p, unsigned rank);

extern "C" void emu_send(void* to, u64 value, unsigned bytes, u64* p, unsigned rank) {
  me_in("lf_send");
  Send s{nullptr, shared_at(to, bytes, bytes, "lf_send"), bytes, nullptr, value};
  s.bar = &bar_at(emu_cluster_at(p, rank), "lf_send");
  s.block = &blocks[rank];
  if (s.bar->unready) fail("lf_send with a barrier that lf_bar_ready was not called for");
  if (send_count == SENDS) fail("more than %u values on their way", SENDS);
  sends[send_count++] = s;
  if (at_once(LOAD)) carry_out_send(send_count - 1);
}

extern "C" void emu_tile_load(const char* what, void* to, const void* map, u64* p, const int* at, unsigned rank) {
  Copy c = copy_of(what, map, to, at, rank);
  c.bar = &bar_at(p, what);
  if (c.bar->unready) fail("%s with a barrier that lf_bar_ready was not called for", what);
  if (&home(p) != current->block) fail("%s with the barrier of another block", what);
  if (load_count == COPIES) fail("more than %u tile loads at a time", COPIES);
  loads[load_count++] = c;
  if (at_once(LOAD)) carry_out_load(load_count - 1);
}

extern "C" void emu_tile_store(const char* what, const void* map, const void* from, const int* at, unsigned rank) {
  Copy c = copy_of(what, map, from, at, rank);
  check_fenced(*c.block, c.shared, c.bytes, what);
  if (store_count == COPIES) fail("more than %u tile stores at a time", COPIES);
  c.done = at_once(STORE);
  if (c.done) carry_out(c, false);
  stores[store_count++] = c;
}

extern "C" void emu_tile_store_end() {
  unsigned me = fiber_number(me_in("lf_tile_store_end"));
  ++groups[me];
  for (unsigned n = 0; n < store_count; ++n)
    if (stores[n].fiber == me && !stores[n].group) stores[n].group = groups[me];
}

extern "C" void emu_tile_store_wait(int left) {
  me_in("lf_tile_store_read");
  finish_stores((unsigned)left);
}

extern "C" void emu_tile_prefetch(const void* map) {
  if (((const Map*)map)->mark != MAP_MARK) fail("lf_tile_prefetch of something that is not a tile map");
}

extern "C" void emu_group_barrier(int id, int threads, bool waits) {
  const char* what = waits ? "lf_group_sync" : "lf_group_arrive";
  me_in(what);
  if (id < 1 || id > 15) fail("%s at barrier %d; there are 1 to 15", what, id);
  if (threads <= 0 || threads % 32 || (unsigned)threads > job.threads)
    fail("%s for %d threads of a block of %u: whole warps take part", what, threads, job.threads);
  come((unsigned)id, (unsigned)threads, waits);
}
