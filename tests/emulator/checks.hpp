// What g++'s checks call; kernels are compiled with -fsanitize and linked without its library.
#pragma once

struct Place { const char* file; unsigned line, column; };
struct Misaligned { Place place; const struct { uint16_t kind, info; char name[1]; }* type; unsigned char log, kind; };

EXPORT void __ubsan_handle_type_mismatch_v1(Misaligned* d, void* p) {
  fail("@%u an access to %s at an address that is %u bytes off a multiple of %u", d->place.line, d->type->name,
       (unsigned)((uintptr_t)p & ((1u << d->log) - 1)), 1u << d->log);
}
EXPORT void __ubsan_handle_out_of_bounds(Place* p, void*) { fail("@%u a subscript outside a local array", p->line); }
EXPORT void __ubsan_handle_add_overflow(Place* p, void*, void*) { fail("@%u a signed sum overflows", p->line); }
EXPORT void __ubsan_handle_sub_overflow(Place* p, void*, void*) { fail("@%u a signed difference overflows", p->line); }
EXPORT void __ubsan_handle_mul_overflow(Place* p, void*, void*) { fail("@%u a signed product overflows", p->line); }
EXPORT void __ubsan_handle_negate_overflow(Place* p, void*) { fail("@%u a signed negation overflows", p->line); }
EXPORT void __ubsan_handle_divrem_overflow(Place* p, void*, void*) { fail("@%u a division by zero", p->line); }
EXPORT void __ubsan_handle_shift_out_of_bounds(Place* p, void*, void*) { fail("@%u a shift by too much", p->line); }
