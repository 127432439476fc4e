"""Which tests `make test-fast` leaves out."""

from tools.slow import slow_tests

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_a" name="test_quick" time="0.2"/>
<testcase classname="tests.cli.test_a" name="test_long[llava]" time="1.5"/>
<testcase classname="tests.cli.test_a" name="test_long[gemma3]" time="0.1"/>
<testcase classname="tests.test_b" name="test_exact" time="1.0"/>
</testsuite></testsuites>"""


def test_a_test_is_slow_when_one_of_its_parameters_is() -> None:
    assert slow_tests(REPORT) == ["tests/cli/test_a.py::test_long", "tests/test_b.py::test_exact"]
