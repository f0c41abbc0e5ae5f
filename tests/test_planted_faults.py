"""The faults of faults.toml can still be planted: code that changed takes its fault along."""

from tests.mutations import ROOT, read_faults


def test_the_text_of_every_fault_occurs_once():
    def count(fault):
        return (ROOT / fault.path).read_text(encoding="utf-8").count(fault.old)

    assert [fault.what for fault in read_faults() if count(fault) != 1] == []
