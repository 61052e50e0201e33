"""A file manager with folders: files can be renamed, moved by a list or by dragging, and deleted permanently."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import FILES, TITLES
from agentenv.envs.domsim.records import Move, TaskDraft, changed, find, numbered, without
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, textbox
from agentenv.envs.domsim.world import World

FOLDERS = ("Documents", "Downloads", "Pictures", "Work")


class File(NamedTuple):
    """One file; ``size`` in kB."""

    id: int
    name: str
    folder: str
    size: int


class Files:
    """``files.files`` and ``files.folders``."""

    name: ClassVar[str] = "Files"

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates files in random folders, all with different sizes."""
        sizes = rng.sample(range(10, 999), len(FILES))
        rows = [File(0, name, rng.choice(FOLDERS), size) for name, size in zip(FILES, sizes, strict=True)]
        return {"files.files": numbered(rows), "files.folders": FOLDERS}

    def view(self, world: World) -> list[Row]:
        """Returns the list of folders, the content of one folder, or a file."""
        match world.page[1:]:
            case ("file", int(id)):
                return self._file(find(world.data["files.files"], id))
            case ("folder", str(folder)):
                held = [file for file in world.data["files.files"] if file.folder == folder]
                rows = [[item(file.name, f"file.{file.id}", "show", file.id)] for file in held]
                return [heading(folder), *rows, [label("Other folders")], *self._folders(world, folder)]
            case _:
                return [[button("New folder", "new", "ask_folder")], *self._folders(world, "")]

    def _folders(self, world: World, present: str) -> list[Row]:
        return [
            [item(folder, f"folder.{folder}", "enter", folder, drop=("drop", folder))]
            for folder in world.data["files.folders"]
            if folder != present
        ]

    def _file(self, file: File) -> list[Row]:
        return [
            heading(file.name),
            [label(f"{file.size} kB in {file.folder}")],
            [
                button("Rename", "rename", "ask_name", file.id),
                button("Move", "move", "ask_place", file.id),
                button("Delete", "delete", "ask_delete", file.id),
            ],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks for a name or a folder, or for confirmation before a file is deleted."""
        kind, id = world.dialog[0], int(world.dialog[1])
        cancel = button("Cancel", "cancel", "back")
        match kind:
            case "name":
                return [
                    heading("Rename"),
                    [textbox(world.fields, "name", "Name")],
                    [button("Save", "submit", "rename", id), cancel],
                ]
            case "place":
                folders = world.data["files.folders"]
                return [
                    heading("Move"),
                    [choice(world.fields, "folder", "To", folders)],
                    [button("Move", "submit", "move", id), cancel],
                ]
            case "folder":
                return [
                    heading("New folder"),
                    [textbox(world.fields, "name", "Name")],
                    [button("Create", "submit", "create"), cancel],
                ]
            case _:
                return [
                    heading("Delete this file for good?"),
                    [button("Delete", "submit", "delete", id), cancel],
                ]

    def enter(self, world: World, folder: str) -> None:
        """Shows a folder."""
        world.go("files", "folder", folder)

    def show(self, world: World, id: int) -> None:
        """Shows a file."""
        world.go("files", "file", id)

    def drop(self, world: World, folder: str, key: str) -> None:
        """Moves the file that was dragged."""
        kind, _, number = key.partition(".")
        if kind == "file":
            world.data["files.files"] = changed(world.data["files.files"], int(number), folder=folder)
        else:
            world.notice = "Only files can be moved."

    def ask_name(self, world: World, id: int) -> None:
        """Asks for a new name."""
        world.ask("name", id, fields={"name": find(world.data["files.files"], id).name})

    def ask_place(self, world: World, id: int) -> None:
        """Asks for another folder."""
        world.ask("place", id, fields={"folder": world.data["files.folders"][0]})

    def ask_delete(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("delete", id)

    def ask_folder(self, world: World) -> None:
        """Asks for the name of a new folder."""
        world.ask("folder", 0, fields={"name": ""})

    def rename(self, world: World, id: int) -> None:
        """Renames a file. No two files may have the same name."""
        name, files = world.text("name"), world.data["files.files"]
        if not name or any(file.name == name and file.id != id for file in files):
            world.notice = "This name cannot be used."
        else:
            world.data["files.files"] = changed(files, id, name=name)
            world.close()

    def move(self, world: World, id: int) -> None:
        """Moves a file to the chosen folder."""
        folder = world.picked("folder", world.data["files.folders"][0])
        world.data["files.files"] = changed(world.data["files.files"], id, folder=folder)
        world.close()

    def delete(self, world: World, id: int) -> None:
        """Deletes a file."""
        world.data["files.files"] = without(world.data["files.files"], id)
        world.go("files")

    def create(self, world: World) -> None:
        """Creates a folder. No two folders may have the same name."""
        name, folders = world.text("name"), world.data["files.folders"]
        if not name or name in folders:
            world.notice = "This name cannot be used."
        else:
            world.data["files.folders"] = (*folders, name)
            world.close()


def _file(data: dict[str, Any], rng: Random) -> tuple[File, tuple[Move, ...]]:
    file = rng.choice(data["files.files"])
    return file, (("open", "files"), ("click", f"folder.{file.folder}"), ("click", f"file.{file.id}"))


def _other_folder(data: dict[str, Any], rng: Random, file: File) -> str:
    return str(rng.choice([folder for folder in data["files.folders"] if folder != file.folder]))


def rename(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Rename a file."""
    file, plan = _file(data, rng)
    name = f"{rng.choice(TITLES).lower().replace(' ', '-')}.{file.name.partition('.')[2]}"
    moves = (*plan, ("click", "rename"), ("fill", "name", name), ("click", "submit"))
    table = changed(data["files.files"], file.id, name=name)
    return TaskDraft(
        f"Rename the file {file.name!r} in {file.folder} to {name!r}.", moves, {"files.files": table}
    )


def move(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Move a file."""
    file, plan = _file(data, rng)
    folder = _other_folder(data, rng, file)
    moves = (*plan, ("click", "move"), ("select", "folder", folder), ("click", "submit"))
    table = changed(data["files.files"], file.id, folder=folder)
    return TaskDraft(
        f"Move the file {file.name!r} from {file.folder} to {folder}.", moves, {"files.files": table}
    )


def drag(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Move a file by dragging it. Any way of moving it is accepted; only its folder counts."""
    file, plan = _file(data, rng)
    folder = _other_folder(data, rng, file)
    moves = (*plan[:-1], ("drag", f"file.{file.id}", f"folder.{folder}"))
    table = changed(data["files.files"], file.id, folder=folder)
    goal = f"Drag the file {file.name!r}, which is in {file.folder}, onto the folder {folder}."
    return TaskDraft(goal, moves, {"files.files": table})


def delete(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Delete a file."""
    file, plan = _file(data, rng)
    moves = (*plan, ("click", "delete"), ("click", "submit"))
    table = without(data["files.files"], file.id)
    return TaskDraft(f"Delete the file {file.name!r} in {file.folder}.", moves, {"files.files": table})


def create(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Make a folder."""
    name = rng.choice(TITLES)
    moves = (("open", "files"), ("click", "new"), ("fill", "name", name), ("click", "submit"))
    return TaskDraft(
        f"Make a folder called {name!r}.", moves, {"files.folders": (*data["files.folders"], name)}
    )


def size(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find the size of a file."""
    file, plan = _file(data, rng)
    goal = f"How many kB has the file {file.name!r} in {file.folder}? Answer with the number alone."
    return TaskDraft(goal, (*plan, ("answer", str(file.size))), {}, str(file.size))


TEMPLATES = {
    "files-rename": rename,
    "files-move": move,
    "files-drag": drag,
    "files-delete": delete,
    "files-create": create,
    "files-size": size,
}
