"""Everything is in pyproject.toml, but for one file that lies beside the package: raytrain_debug.pth."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STARTUP = "raytrain_debug.pth"


class BuildWithStartup(build_py):
    """Adds the line that Python runs at its start; an editable install takes it from where `install` would put it."""

    def run(self) -> None:
        super().run()
        into = self.distribution.get_command_obj("install").install_lib if self.editable_mode else self.build_lib
        Path(into).mkdir(parents=True, exist_ok=True)
        self.copy_file(STARTUP, str(Path(into, STARTUP)), preserve_mode=False)

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), STARTUP]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, STARTUP))]


setup(cmdclass={"build_py": BuildWithStartup})
