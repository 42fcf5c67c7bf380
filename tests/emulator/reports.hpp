// Who waits where when nobody can go on, and what the system reports.
#pragma once

namespace {


const char* state(const Fiber& f) { return f.left ? "have left" : f.waits ? f.waits : "run"; }

[[noreturn]] void stuck() {
  char text[1500];
  size_t n = 0;
  unsigned groups = 0;
  for (unsigned b = 0; b < job.cluster; ++b)
    for (unsigned t = 0; t < job.threads && groups < 12;) {
      const char* what = state(fibers[b * THREADS + t]);
      unsigned end = t;
      while (end < job.threads && !strcmp(state(fibers[b * THREADS + end]), what)) ++end;
      if (t == 0 || groups == 0)
        n += (size_t)snprintf(text + n, sizeof text - n, "%sblock (%u, %u, %u): ", n ? "; " : "", blocks[b].index.x,
                              blocks[b].index.y, blocks[b].index.z);
      const char* verb = fibers[b * THREADS + t].waits && !fibers[b * THREADS + t].left ? "wait at " : "";
      n += (size_t)snprintf(text + n, sizeof text - n, "%sthreads %u-%u %s%s", t ? ", " : "", t, end - 1, verb, what);
      t = end;
      ++groups;
    }
  fail("not all threads reach the same barrier or shuffle: %s%s", text, groups >= 12 ? ", ..." : "");
}

void on_signal(int number, siginfo_t* info, void* context) {
  if (syscall(SYS_gettid) != running) {
    if (number == SIGVTALRM) {
      syscall(SYS_tgkill, getpid(), running, number);
      return;
    }
    signal(number, SIG_DFL);
    return;
  }
  fault_kind = number;
  if (number == SIGSEGV || number == SIGBUS) {
    fault_address = info->si_addr;
#if defined(__x86_64__) && defined(__linux__)
    fault_kind = ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2 ? -1 : -2;
#endif
  }
  (void)context;
  siglongjmp(failed, 1);
}

}  // namespace
