"""``python datasets/generate ACTION``: the package beside this file, wherever both lie."""

from treehammer_generate.main import answer_request

if __name__ == "__main__":
    answer_request()
