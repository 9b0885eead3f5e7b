"""`--add-scram`, as `kafka-storage.sh` takes it (KIP-900)."""

from pathlib import Path

import pytest

from tallystick.cli.scram_text import parse_scram_argument
from tallystick.kernel.settings import BadConfig


@pytest.mark.parametrize(
    ("text", "user", "password", "iterations"),
    [
        ("SCRAM-SHA-256=[name=alice,password=secret]", "alice", "secret", 4096),
        ("SCRAM-SHA-512=[name=alice, iterations=8192, password=a,b=c]d]", "alice", "a,b=c]d", 8192),
        ("SCRAM-SHA-256=[password=x,name=User:a b]", "User:a b", "x", 4096),
    ],
)
def test_a_credential(text: str, user: str, password: str, iterations: int) -> None:
    made = parse_scram_argument(text)
    assert (made.user, made.password.reveal(), made.credential.iterations) == (user, password, iterations)
    assert text.startswith(made.credential.mechanism)


def test_the_password_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first line\nsecond\n")
    made = parse_scram_argument(f"SCRAM-SHA-256=[name=alice,password_file={file}]")
    assert made.password.reveal() == "first line"


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "PLAIN=[name=alice,password=hunter2]",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=alice]",
        "SCRAM-SHA-256=[name=alice,name=bob,password=hunter2]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,password_file=x]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,iterations=4095]",
        "SCRAM-SHA-256=[name=alice,password=hunter2,iterations=16385]",
        "SCRAM-SHA-256=[name=alice,password_file=/there/is/none]",
        "SCRAM-SHA-256=[nam=alice,password=hunter2]",
    ],
)
def test_what_is_refused_shows_no_password(text: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_scram_argument(text)
    assert "hunter2" not in str(caught.value)
