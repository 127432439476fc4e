"""Which tests `make test-fast` leaves out."""

from tools.slow import slow_tests

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_a" name="test_quick" time="0.2"/>
<testcase classname="tests.cli.test_a" name="test_long[llava]" time="1.5"/>
<testcase classname="tests.cli.test_a" name="test_long[gemma3]" time="0.1"/>
<testcase classname="tests.test_b" name="test_exact" time="0.5"/>
</testsuite></testsuites>"""


def test_a_test_is_slow_when_one_of_its_parameters_is() -> None:
    assert slow_tests(REPORT) == ["tests/cli/test_a.py::test_long", "tests/test_b.py::test_exact"]


def test_many_parameters_that_are_quick_one_by_one_are_slow_together() -> None:
    case = '<testcase classname="tests.test_laws" name="test_batch[{}]" time="0.1"/>'
    report = "<testsuites>{}</testsuites>"
    assert slow_tests(report.format("".join(case.format(i) for i in range(101)))) == ["tests/test_laws.py::test_batch"]
    assert slow_tests(report.format("".join(case.format(i) for i in range(99)))) == []
