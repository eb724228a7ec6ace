"""`ottla completion`: the scripts by which bash, zsh and fish complete `ottla`.

A script passes the command line up to the cursor to `ottla` in COMP_LINE. The answer has the kind of the completion in
its first line (`names`, `file` or `dir`), and then a name on each line, with a tab and its description if it has one.
The module is imported for a completion, and registers its classes for the shells in place of those of click.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import redirect_stderr
from typing import ClassVar

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

_BASH = """\
_ottla_completion() {
    local line kind= answer
    answer=$(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_TYPED="$2" _OTTLA_COMPLETE=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $kind ]]; then kind=$line; else COMPREPLY+=("$line"); fi
    done <<< "$answer"
    case $kind in
        file) compopt -o default 2>/dev/null ;;
        dir) compopt -o dirnames 2>/dev/null ;;
    esac
}
complete -o nosort -F _ottla_completion ottla 2>/dev/null || complete -F _ottla_completion ottla
"""

_ZSH = """\
#compdef ottla
_ottla_completion() {
    local line typed="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local -a lines names shown
    lines=("${(@f)$(COMP_LINE=$typed _OTTLA_COMPLETE=zsh_complete $words[1] 2>/dev/null)}")
    case $lines[1] in
        file) _files ;;
        dir) _files -/ ;;
        names)
            for line in "${(@)lines[2,-1]}"; do
                [[ -n $line ]] || continue
                names+=("${line%%$'\\t'*}")
                shown+=("${line/$'\\t'/  -- }")
            done
            (( $#names )) && compadd -l -d shown -a names
            ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _ottla_completion "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _ottla_completion ottla
fi
"""

_FISH = """\
function _ottla_completion
    set -l words (commandline -opc)
    set -l line (commandline -cp | string collect)
    set -l lines (env COMP_LINE="$line" _OTTLA_COMPLETE=fish_complete $words[1] 2>/dev/null)
    switch "$lines[1]"
        case file
            __fish_complete_path (commandline -ct)
        case dir
            __fish_complete_directories (commandline -ct)
        case names
            for name in $lines
                printf '%s\\n' $name
            end | tail -n +2
    end
end
complete --command ottla --no-files --arguments '(_ottla_completion)'
"""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: characters that bash need not have quoted in a word
_UNQUOTED_IN_BASH = re.compile(r"[^\w./:=@%+,-]", re.ASCII)
_QUOTES = ("'", '"')


class _Complete(ShellComplete):
    """What the shells have in common."""

    source_template: ClassVar[str] = ""

    def source(self) -> str:
        return self.source_template

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words of the line behind the command, and the last one, which is not complete."""
        # With a letter at its end the line has a last word also after a space.
        words = split_arg_string(f"{os.environ.get('COMP_LINE', '')}x")
        return words[1:-1], words[-1][:-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return completions of the whole last word, also of the value in `--option=value`."""
        prefix = ""
        if incomplete.startswith("--") and "=" in incomplete and "--" not in args:
            prefix = incomplete[: incomplete.index("=") + 1]
        items = super().get_completions(args, incomplete)
        usable = [item for item in items if not _CONTROLS.search(str(item.value))]
        for item in usable:
            item.value = f"{prefix}{item.value}"
        return usable

    def complete(self) -> str:
        # A warning would appear in the line that the user types.
        with redirect_stderr(io.StringIO()):
            args, incomplete = self.get_completion_args()
            items = self.get_completions(args, incomplete)
        kinds = {item.type for item in items} - {"plain"}
        if kinds:
            return kinds.pop()
        return "\n".join(["names", *(self.format_completion(item) for item in items)])

    def format_completion(self, item: CompletionItem[str]) -> str:
        # The shell shows one line.
        return f"{item.value}\t{' '.join(item.help.split())}" if item.help else item.value


class _Bash(_Complete):
    """bash splits words at : and =, and replaces only the last part of a word, COMP_TYPED."""

    name = "bash"
    source_template = _BASH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        items = super().get_completions(args, incomplete)
        typed = os.environ.get("COMP_TYPED", "")
        is_quoted = typed.startswith(_QUOTES)
        replaced = typed[1:] if is_quoted else "".join(split_arg_string(typed))
        kept = len(incomplete) - len(replaced) if incomplete.endswith(replaced) else 0
        for item in items:
            value = str(item.value)[kept:]
            item.value = value if is_quoted else _UNQUOTED_IN_BASH.sub(r"\\\g<0>", value)
            if is_quoted:
                item.value = typed[0] + value
        return items

    def format_completion(self, item: CompletionItem[str]) -> str:
        return str(item.value)


class _Zsh(_Complete):
    name = "zsh"
    source_template = _ZSH


class _Fish(_Complete):
    name = "fish"
    source_template = _FISH


_SHELLS = {each.name: each for each in (_Bash, _Zsh, _Fish)}
for _shell in _SHELLS.values():
    add_completion_class(_shell)


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(_SHELLS)))
def command(shell: str) -> None:
    """Print the script by which a shell completes commands, options and names of the cluster.

    \b
      eval "$(ottla completion bash)"     in ~/.bashrc
      eval "$(ottla completion zsh)"      in ~/.zshrc
      ottla completion fish | source      in ~/.config/fish/config.fish

    Topics, groups, transactional ids, subjects and profiles are completed. The cluster has one second to answer, and
    its answer is kept for ten seconds.
    """
    click.echo(_SHELLS[shell].source_template, nl=False)
