"""Entry point: ``python datasets/generate ACTION`` runs the package beside this file."""

from treehammer_generate import answer_request

if __name__ == "__main__":
    answer_request()
