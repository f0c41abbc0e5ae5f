"""FASTA files: records, gaps, and everything that such files are found to hold."""

import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import Document, Skipped, fasta, load_documents, split_documents
from based_jax.data.fasta import GAP, read_sequences

GAPPED = "AC" + "N" * (GAP + 30) + "g" * 3 + "n" * (GAP - 1) + "t" + "N" * (2 * GAP)


def texts(content: str | bytes, chunk: int = 1 << 20) -> dict[str, str]:
    """Name and text of every document."""
    data = content.encode() if isinstance(content, str) else content
    chunks = [data[start : start + chunk] for start in range(0, len(data), chunk)]
    documents = [item for item in read_sequences(chunks, "f") if isinstance(item, Document)]
    assert all(document.text for document in documents)
    return {document.name: document.text for document in documents}


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("extension", [".fa", ".fasta", ".fna", ".FA"])
def test_records_are_documents(tmp_path, extension, ending):
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    name = f"hg.38{extension}{ending}"
    (tmp_path / name).write_bytes(compress(b">chr1 the first\nACGT\nacgt\n>chr2|x\nNNA\n"))
    corpus = load_documents(str(tmp_path))
    assert corpus.documents == (Document(f"{name}:chr1", "ACGTacgt"), Document(f"{name}:chr2|x", "NNA"))
    assert corpus.skipped == ()


def test_what_such_files_are_found_to_hold():
    content = (
        "\r\n; a comment\r\n"
        ">a  many  words > here\r\nAC\r\n\r\nGT \t\r\n; in between > not a header\r\nA>C\r\n"
        ">\r\nTT\r\n"
        ">empty\r\n\r\n"
        ">  \r\n"
        ">last\r\nG"
    )
    assert list(read_sequences([content.encode()], "f")) == [
        *(Document("f:a", "ACGTA>C"), Document("f:2", "TT")),
        *(Skipped("f:empty", "empty"), Skipped("f:4", "empty"), Document("f:last", "G")),
    ]


def test_a_gap_cuts_a_record_and_is_not_text():
    assert texts(f">a\n{GAPPED}\n>b\n{'N' * GAP}\n") == {
        "f:a:1-2": "AC",
        f"f:a:{GAP + 33}-{2 * GAP + 35}": "ggg" + "n" * (GAP - 1) + "t",
    }
    assert texts(f">a\n{'N' * (GAP - 1)}\n") == {"f:a": "N" * (GAP - 1)}
    assert list(read_sequences([f">b\n{'N' * GAP}".encode()], "f")) == [Skipped("f:b", "empty")]


@given(
    records=st.lists(
        st.lists(st.sampled_from(["A", "cg", "N" * 60, "n" * 50, "\n", "\r\n", "\n;x\n", " "]), max_size=8),
        min_size=1,
        max_size=4,
    ),
    chunk=st.integers(1, 40),
)
def test_neither_chunks_nor_line_ends_matter(records, chunk):
    content = "".join(f">r{number} x\n{''.join(parts)}\n" for number, parts in enumerate(records))
    assert texts(content, chunk) == texts(content)
    for number, parts in enumerate(records):
        sequence = "".join(part for part in parts if part[0] in "AcNn")
        sequences = {name: text for name, text in texts(content).items() if name.startswith(f"f:r{number}")}
        for name, text in sequences.items():
            if name != f"f:r{number}":
                start, end = map(int, name.rpartition(":")[2].split("-"))
                assert sequence[start - 1 : end] == text
        # What is in none of them are the runs of N.
        kept = sum(map(len, sequences.values()))
        assert sum(letter in "Acg" for letter in sequence) == sum(
            letter in "Acg" for text in sequences.values() for letter in text
        )
        assert kept == len(sequence) or "N" * GAP in sequence.upper()
        assert not any("N" * GAP in text.upper() for text in sequences.values())


def test_a_file_that_is_not_fasta_is_an_error(tmp_path):
    (tmp_path / "a.fa").write_text("\nACGT\n>chr1\nACGT\n")
    with pytest.raises(ValueError, match=r"a\.fa, first line = 'ACGT': expected '>' and a name"):
        load_documents(str(tmp_path))


# --- held-out records


def chromosomes() -> list[Document]:
    sizes = {"chr1:1-400": 400, "chr2": 300, "chr8:1-200": 200, "chr8:301-600": 300, "chr88": 50}
    return [Document(f"f.fa:{name}", f"{name}|" + "ACGT" * size) for name, size in sizes.items()]


def test_named_records_are_held_out():
    train, held_out = split_documents(chromosomes(), held_out_names="chr8,chr2")
    assert {document.name for document in train} == {"f.fa:chr1:1-400", "f.fa:chr88"}
    assert {document.name for document in held_out} == {"f.fa:chr2", "f.fa:chr8:1-200", "f.fa:chr8:301-600"}


def test_a_bound_takes_the_middles():
    documents = chromosomes()
    _, held_out = split_documents(documents, held_out_names="chr8", max_bytes=100)
    assert {document.name for document in held_out} == {
        "f.fa:chr8:1-200 (middle)",
        "f.fa:chr8:301-600 (middle)",
    }
    assert 98 <= sum(len(document.text) for document in held_out) <= 100
    assert all("|" not in document.text for document in held_out)
    _, whole = split_documents(documents, held_out_names="chr8")
    assert sum(len(document.text) for document in whole) == 2000 + len("chr8:1-200|chr8:301-600|")


def test_a_name_that_no_document_has_is_an_error():
    with pytest.raises(ValueError, match=r"^held_out_names = 'chr3': expected files or records"):
        split_documents(chromosomes(), held_out_names="chr3,chr2")
    with pytest.raises(ValueError, match="that differ"):
        split_documents(chromosomes(), held_out_names="f.fa")


def test_a_header_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(fasta, "MAX_HEADER", 100)  # kept whole, it is copied once for each chunk
    chunks = [b">chr1\nACGT\n>", *[b"x" * 50] * 10]
    with pytest.raises(ValueError, match=r"g\.fa, a header = '.* bytes': expected at most 100"):
        list(read_sequences(chunks, "g.fa"))
