"""JUnit XML for test dashboards: a suite for each listener, a case for each check."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from sluice.audit.model import Outcome, Report, Result

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Report) -> str:
    """The whole report as one document."""
    suites = ET.Element("testsuites", name=_clean(f"audit of {report.subject}"), time=f"{report.seconds:.3f}")
    for listener in dict.fromkeys(result.listener for result in report.results):
        results = [result for result in report.results if result.listener == listener]
        suite = ET.SubElement(
            suites,
            "testsuite",
            name=_clean(listener),
            tests=str(len(results)),
            failures=str(sum(result.open_finding for result in results)),
            errors="0",
            skipped=str(sum(_skipped(result) for result in results)),
            time=f"{sum(result.seconds for result in results):.3f}",
            timestamp=f"{report.started_at:%Y-%m-%dT%H:%M:%S}",
        )
        for result in results:
            _add_case(suite, result)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode")


def _add_case(suite: ET.Element, result: Result) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        name=_clean(f"{result.check} {result.title}"),
        classname=_clean(f"audit.{result.listener}"),
        time=f"{result.seconds:.3f}",
    )
    if result.open_finding:
        failure = ET.SubElement(case, "failure", type=str(result.severity), message=_clean(result.seen))
        failure.text = _clean(
            f"at {result.place}\ndone: {result.done}\nexpected: {result.expected} ({'; '.join(result.references)})\n"
            f"seen: {result.seen}\nremedy: {result.remedy}"
        )
    elif result.accepted is not None:
        why = f"accepted until {result.accepted.expires}: {result.accepted.reason}"
        ET.SubElement(case, "skipped", message=_clean(why))
    elif _skipped(result):
        ET.SubElement(case, "skipped", message=_clean(result.seen))


def _skipped(result: Result) -> bool:
    return result.outcome is Outcome.NOT_EXAMINED or result.accepted is not None


def _clean(text: str) -> str:
    """``text`` without characters that XML 1.0 forbids."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
