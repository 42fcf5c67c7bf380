"""What every test run shares."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import pytest
from cli_shell import Shell
from hypothesis import settings

from loopfuse.cuda import engine

# `make test` draws the same examples every time, so that a change is judged by what it changes; `make test-all` draws
# new ones (`--hypothesis-profile=explore`).
settings.register_profile("repeatable", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("repeatable")


# Suites of kernels that a CPU runs, each compiled first, suites that go over all scripts, and a few long tests: of the cases
# of a test every so-manieth is of `make test`, all of them are of `make test-all`.
SAMPLED = {
    "test_emit_contractions": 13, "test_emit_threads": 21, "test_emit_warps": 19, "test_emit_fragments": 18,
    "test_emit_row_products": 18, "test_emit_rows": 21, "test_emit_columns": 13, "test_emit_maps": 15, "test_emit_scatters": 13,
    "test_cuda_arches": 3, "test_emulator_matrix": 4, "test_emulated_programs": 18, "test_emulated_ops": 12, "test_instances": 6,
    "test_passes::test_tasks_stay_valid_after_every_pass": 5, "test_merge::test_windows_of_local_arrays_follow_every_index": 3,
    "test_planted": 2, "test_random_sizes": 2, "test_emit_segments::test_scripts": 12, "test_emit_segments::test_tiles": 5,
    "test_lock::test_a_tile_that_is_asked_for": 4,
    "test_polybench::test_kernel_after_all_passes": 9, "test_polybench::test_what_is_sequential_stays_in_order": 4,
    "test_programs::test_after_every_pass": 4, "test_signals::test_as_written": 3, "test_networks::test_formulas": 4,
    "test_explain::test_launches_are_those_of_the_emitted_kernels": 3, "test_explain::test_every_faster_path_has_a_reason": 5,
    "test_explain::test_nothing_to_do": 5,
    "test_passes::test_scripts_agree_after_every_pass": 4, "test_passes::test_patterns_agree_after_every_pass": 3,
    "test_passes::test_a_single_pass_on_random_programs": 3, "test_fuse::test_scripts_keep_every_bit": 4,
    "test_fuse::test_every_number_of_decisions_gives_a_valid_program": 3,
    "test_fuse::test_the_order_of_statements_does_not_matter": 2, "test_merge::test_joined_scripts_keep_every_bit": 2,
    "test_cse::test_doubled_scripts": 3, "test_cse::test_scripts": 3, "test_cse::test_names_do_not_matter": 3,
    "test_simplify::test_scripts_keep_their_bits": 3, "test_bodies::test_scripts": 3, "test_fmt::test_scripts": 2,
    "test_testing::test_faults_that_were_found_stay_repaired": 4, "test_reports::test_stated_value_after_every_pass": 4,
    "test_scripts::test_library": 3, "test_scripts::test_script": 2, "test_examples::test_the_command_in_the_header_runs": 3,
    "test_reference::test_known_programs": 2, "test_reference::test_odd_programs": 2, "test_parse::test_nesting": 3,
    "test_parse::test_long_chains": 2, "test_prove::test_off_by_one": 2, "test_emit_names::test_names_of_a_script_hide_nothing": 3,
    "test_emit_wide::test_nothing_overflows": 2, "test_fuzz::test_broken_scripts": 3,
    "test_cascade_rows::test_attention_is_one_pass": 3, "test_cascade_rows::test_a_chain_of_folds_becomes_one": 3,
    "test_window::test_all_sizes_of_tiles_give_the_same_bits": 2, "test_emit_approx::test_errors_are_within_their_bounds": 2,
    "test_numerics::test_float_arithmetic_is_correctly_rounded": 2, "test_cli_ends::test_a_reader_that_goes_away": 2,
    "test_fusion_table::test_pattern": 2, "test_emitted_structure::test_pattern": 2,
}  # fmt: skip
FEW_CASES = 3  # of a test that are all of `make test`


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `make test` leaves to `make test-all`."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function):
            module = item.module.__name__.rsplit(".", 1)[-1]
            cases.setdefault((module, f"{module}::{item.originalname}"), []).append(item)
    for (module, test), found in cases.items():
        every = SAMPLED.get(test) or SAMPLED.get(module, 1)
        first = zlib.crc32(test.encode()) % every  # the suites that go over all scripts take different ones
        for number, item in enumerate(found if len(found) > FEW_CASES else ()):
            if number % every != first:
                item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites the expectations of file tests."""
    parser.addoption("--bless", action="store_true", help="rewrite the expectations of file tests")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expectations are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
          tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Shell:  # fmt: skip
    """Command lines in a folder of their own; many files have one with a script in it. What was compiled before on this
    machine is not there, for `explain` would tell of it; the tests of a file share what they compile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / f"cache-{request.module.__name__}"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # reproducers of bugs go there
    return Shell(tmp_path, capsys)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours unless a test asks for them."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked gpu gives the same on every machine: what is left to choose runs on the reference."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(engine, "usable", lambda ordinal=0: "tests that are not marked gpu use none")
