// A stack and where to go on with it: what a fiber needs. By hand on x86-64, elsewhere by the C library.
#pragma once
#include <stddef.h>
#include <ucontext.h>

namespace {

#if !defined(__x86_64__) || defined(EMU_UCONTEXT)
struct Context { ucontext_t at; };
void enter(Context& from, Context& to) { swapcontext(&from.at, &to.at); }
void prepare(Context& c, unsigned char* stack, size_t size, void (*start)()) {
  getcontext(&c.at);
  c.at.uc_stack.ss_sp = stack;
  c.at.uc_stack.ss_size = size;
  c.at.uc_link = nullptr;
  makecontext(&c.at, start, 0);
}
#else
struct Context { void* sp; };
extern "C" void emu_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.local emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
void enter(Context& from, Context& to) { emu_switch(&from.sp, to.sp); }
void prepare(Context& c, unsigned char* stack, size_t size, void (*start)()) {
  void** top = (void**)(stack + size) - 1;  // at the start of `start` the stack is 8 off a multiple of 16
  *top = nullptr;
  *--top = (void*)start;
  c.sp = top - 6;
}
#endif

}  // namespace
