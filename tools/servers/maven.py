"""Takes jars with Maven into `.cache`, once. Standard library only.

The jars belong to other systems to compare with; none is shipped with tallystick or imported by it.
"""

import fcntl
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache"
SECONDS_MAX: Final = 600


class Unavailable(Exception):
    """Something is not available on this machine; the text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Jars:
    """Artifacts and their run-time dependencies.

    artifacts   group, name and version of each
    exclusions  groups of which nothing is taken, because the program that runs the jars has them
    """

    name: str
    version: str
    artifacts: tuple[tuple[str, str, str], ...]
    exclusions: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        return CACHE / self.name / self.version

    def find_missing(self) -> str | None:
        """Return what this machine lacks, or None. Cost: no network."""
        if shutil.which("java") is None:
            return f"java is not on the PATH ({self.name} {self.version} needs Java 17 or later)"
        if not self._is_complete() and shutil.which("mvn") is None:
            return f"mvn is not on the PATH (it takes the jars of {self.name} from Maven Central)"
        return None

    def take(self) -> Path:
        """Return the directory of the jars, which Maven takes the first time.

        Safe to call from several processes at once: the first takes the jars, the others wait.

        Raises:
            Unavailable: mvn or java is missing, or Maven failed.
        """
        if (lack := self.find_missing()) is not None:
            raise Unavailable(lack)
        if not self._is_complete():
            self.home.mkdir(parents=True, exist_ok=True)
            with (self.home / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._is_complete():
                    self._copy()
        return self.home / "libs"

    def _is_complete(self) -> bool:
        """Return whether an earlier run took every jar: it writes the request to the marker file last."""
        mark = self.home / "complete"
        return mark.exists() and mark.read_text() == self._make_pom()

    def _make_pom(self) -> str:
        dependencies = "".join(
            f"<dependency>{_make_element('groupId', group)}{_make_element('artifactId', artifact)}"
            f"{_make_element('version', version)}{_make_exclusions(self.exclusions)}</dependency>\n"
            for group, artifact, version in self.artifacts
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
            f"<groupId>tallystick</groupId><artifactId>{self.name}</artifactId><version>1</version>"
            f"<packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies></project>\n"
        )

    def _copy(self) -> None:
        libs = self.home / "libs"
        shutil.rmtree(libs, ignore_errors=True)
        pom = self.home / "pom.xml"
        pom.write_text(self._make_pom())
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={libs}", "-DincludeScope=runtime"]
        result = subprocess.run(
            ["mvn", "--quiet", "--batch-mode", "--file", str(pom), *goal],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if result.returncode:
            raise Unavailable(
                f"Maven could not take {self.name} {self.version}:\n{result.stdout[-2000:]}{result.stderr}"
            )
        (self.home / "complete").write_text(self._make_pom())


def _make_element(name: str, text: str) -> str:
    return f"<{name}>{text}</{name}>"


def _make_exclusions(groups: Iterable[str]) -> str:
    each = "".join(
        f"<exclusion>{_make_element('groupId', group)}<artifactId>*</artifactId></exclusion>"
        for group in groups
    )
    return f"<exclusions>{each}</exclusions>" if each else ""
