"""How a page of documentation becomes a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of, has_commands, script_of

PAGE = """# Title

```sh
make test    # long
echo one
```

<!-- file: sub/hello.txt -->
```text
it's 5 $HOME
```

```json
{"not": "run"}
```

```sh
cat sub/hello.txt
false
echo never
```
"""


def test_code_blocks_are_found_with_line_language_and_file() -> None:
    found = [(each.line, each.language, each.file) for each in blocks_of(PAGE)]
    assert found == [(3, "sh", ""), (9, "text", "sub/hello.txt"), (13, "json", ""), (17, "sh", "")]


def test_a_page_has_commands_when_it_has_a_block_of_sh() -> None:
    assert has_commands(PAGE)
    assert not has_commands("```console\nsudo reboot\n```\n")


def test_a_code_block_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 1"):
        list(blocks_of("```sh\necho\n"))


def test_a_page_runs_until_the_first_failure(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("test:\n\techo was run\n")
    run = subprocess.run(["bash", "-c", script_of(PAGE)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "it's 5 $HOME" in run.stdout
    assert "line 17" in run.stdout
    assert "was run" not in run.stdout
    assert "never" not in run.stdout
