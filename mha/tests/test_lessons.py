"""The exercises of every notebook and their solutions, and the index of questions."""

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from nbformat import NotebookNode

from mha import check

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = {
    path.stem: nbformat.read(path, as_version=4)
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
}
SETUP = LESSONS["00_start_here"].cells[2].source.removesuffix("\n\n%matplotlib inline")


class Asked(NamedTuple):
    """An exercise as it stands in a notebook."""

    lesson: str
    name: str
    cell: NotebookNode
    solution: str


def asked(lesson: str) -> list[Asked]:
    """Every exercise of a lesson, with the code in the closed details that follow it."""
    found = []
    cells = LESSONS[lesson].cells
    for cell, after in itertools.pairwise(cells):
        call = re.search(r"^check\.(\w+)\(my_\1\)$", cell.source, re.M)
        if cell.cell_type == "code" and call:
            details = re.match(
                r"<details><summary>Solution</summary>\n\n```python\n(.*?)```\n.*?</details>",
                after.source,
                re.S,
            )
            assert details, f"{lesson}: no solution follows {call[0]}"
            found.append(Asked(lesson, call[1], cell, details[1]))
    return found


EXERCISES = [exercise for lesson in LESSONS for exercise in asked(lesson)]


def namespace(code: str) -> dict[str, Any]:
    """What `code` defines after the set-up cell."""
    names: dict[str, Any] = {}
    exec(f"{SETUP}\n{code}", names)
    return names


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_a_solution_passes(exercise: Asked) -> None:
    answer = namespace(exercise.solution)[f"my_{exercise.name}"]
    verdict = check.EXERCISES[exercise.name](answer)
    assert verdict.passed, verdict


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_an_unsolved_exercise_says_that_it_waits(exercise: Asked) -> None:
    (output,) = exercise.cell.outputs
    assert output.data["text/plain"].startswith("Waiting for your answer: my_")


def test_every_exercise_is_asked_once_and_each_lesson_has_its_number() -> None:
    assert sorted(e.name for e in EXERCISES) == sorted(check.EXERCISES)
    for lesson in LESSONS:
        least, most = {"00": (0, 0), "10": (6, 6)}.get(lesson[:2], (2, 4))
        assert least <= len(asked(lesson)) <= most, lesson


def test_every_mistake_has_the_parameters_that_its_exercise_shows() -> None:
    for exercise in EXERCISES:
        parameters = re.search(rf"def my_{exercise.name}\((.*)\):", exercise.cell.source)
        assert parameters
        assert f"def my_{exercise.name}({parameters[1]}):" in exercise.solution


# ---- the index of questions

INDEX = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^(\d+)\. (.*)$", INDEX, re.M)
LINK = re.compile(r"\[(\d\d) ([^\]]+)\]\((\w+)\.ipynb#([^)]+)\)")


def sections(nb: NotebookNode) -> dict[str, int]:
    """How many code cells stand under each heading, by the anchor of the heading."""
    found: dict[str, int] = {}
    last = ""
    for cell in nb.cells:
        if cell.cell_type == "code":
            found[last] = found.get(last, 0) + 1
        for heading in re.findall(r"^#+ (.*)$", cell.source, re.M) * (cell.cell_type != "code"):
            last = heading.replace(" ", "-")
            found[last] = 0
    return found


def test_the_index_numbers_its_questions() -> None:
    assert [int(number) for number, _ in QUESTIONS] == list(range(1, len(QUESTIONS) + 1))
    asked = [re.split(r" \[\d\d ", question)[0] for _, question in QUESTIONS]
    assert len(set(asked)) == len(asked)


def test_the_number_of_questions_is_the_same_wherever_it_is_written() -> None:
    start = "\n".join(cell.source for cell in LESSONS["00_start_here"].cells)
    readme = (NOTEBOOKS.parent / "README.md").read_text(encoding="utf-8")
    for text in (start, readme):
        assert re.findall(r"(\d+) questions", text) == [str(len(QUESTIONS))]


@pytest.mark.parametrize(("number", "question"), QUESTIONS, ids=lambda x: x[:30])
def test_a_question_leads_to_a_section_with_a_cell_to_run(number: str, question: str) -> None:
    links = LINK.findall(question)
    assert links
    assert question.count("](") == len(links)
    for lesson, text, name, anchor in links:
        assert name.startswith(lesson)
        assert anchor == text.replace(" ", "-")
        assert sections(LESSONS[name])[anchor] > 0, (name, anchor)
