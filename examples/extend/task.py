"""A custom task with its file format: each line is `LABEL: TEXT`, and # begins a comment.

    bert-jax finetune --extend examples/extend/task.py --task topic MODEL \
        --train train.txt --dev dev.txt --workdir RUN
    bert-jax predict --extend examples/extend/task.py RUN --input new.txt
"""

from bert_jax.data.sources.read import read_text
from bert_jax.data.tasks.tables import TextRow
from bert_jax.errors import UsageError
from bert_jax.registry import TASK_KINDS, TASKS
from bert_jax.tasks.sequence_classification import TextTask
from bert_jax.tasks.task import NamedTask, TaskSpec


class Topic(TextTask):
    """Text classification that only differs from the built-in task in the format of the files."""

    has_columns = False

    def read(self, source: str, *, labelled: bool = True, id_column: str | None = None):
        rows = []
        for number, line in enumerate(read_text(source).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            label, colon, text = line.partition(":")
            if labelled and not colon:
                raise UsageError(f"{source}, line {number}: write it as LABEL: TEXT")
            text, known = (text, label.strip()) if colon else (line, None)
            where = f"{source}, line {number}"
            rows.append(
                TextRow(where, (text.strip(),), known if labelled else None, str(len(rows)))
            )
        if not rows:
            raise UsageError(f"{source} has no rows")
        return rows


TASK_KINDS.register("topic", Topic)
TASKS.register(
    "topic", NamedTask(spec=TaskSpec(name="topic", kind="topic", metrics=("accuracy", "macro_f1")))
)
