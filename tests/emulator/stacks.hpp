// The memory of the threads and blocks on stage: stacks, and shared memory.
#pragma once

namespace {

unsigned char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : (unsigned char*)p;
}

// Stacks do not all begin at the same offset in a page, or they would compete for the same lines of the cache.
void give_stacks(unsigned count) {
  if (!stacks) stacks = reserve(STACK * BLOCKS * THREADS);
  for (; stacked < count; ++stacked) {
    Fiber& f = fibers[stacked];
    f.block = &blocks[stacked / THREADS];
    f.thread = stacked % THREADS;
    f.lane = f.thread % 32;
    f.bit = 1u << f.lane;
    unsigned char* base = stacks + STACK * stacked;
    mprotect(base, PAGE, PROT_NONE);
    prepare(f.context, base, STACK - (f.thread % 32) * 128, start);
  }
}

// A process may have some 65000 mappings, and a stack with the page below it is two.
void return_stacks() {
  if (stacked <= FEW_STACKS) return;
  munmap(stacks, STACK * BLOCKS * THREADS);
  stacks = nullptr;
  stacked = 0;
}

// Each block's shared memory ends where no memory is, up to what its alignment asks: what is beyond cannot be read.
void give_shared() {
  unsigned size = (job.shared + job.alignment - 1) / job.alignment * job.alignment;
  for (unsigned b = 0; b < job.cluster; ++b) {
    if (!shared_base[b]) {
      unsigned char* p = reserve(SHARED + 2 * PAGE);
      mprotect(p, PAGE, PROT_NONE);
      mprotect(p + PAGE + SHARED, PAGE, PROT_NONE);
      shared_base[b] = p + PAGE;
    }
    unsigned char* end = shared_base[b] + SHARED;
    blocks[b].shared = end - size;
    if (size != shared_size || b >= shared_count) {
      unsigned char* first = end - (size + PAGE - 1) / PAGE * PAGE;
      mprotect(shared_base[b], (size_t)(first - shared_base[b]), PROT_NONE);
      if (first != end) mprotect(first, (size_t)(end - first), PROT_READ | PROT_WRITE);
    }
  }
  if (size != shared_size) shared_count = 0;
  if (job.cluster > shared_count) shared_count = job.cluster;
  shared_size = size;
}

void poison_shared(Block& block) {
  if (shared_size) memset(block.shared, job.poison, shared_size);
}

void check_past_shared(const Block& block) {
  for (unsigned k = job.shared; k < shared_size; ++k)
    if (block.shared[k] != (unsigned char)job.poison)
      fail("something was written at byte %u of shared memory, which has %u", k, job.shared);
}

}  // namespace
