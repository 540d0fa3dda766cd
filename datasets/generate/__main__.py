"""``python datasets/generate ACTION``: the package beside this file, wherever both lie."""

from treehammer_generate.main import main

if __name__ == "__main__":
    main()
