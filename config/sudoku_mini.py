# 6x6 Sudoku (2x3 boxes), minimal puzzles that singles solve, generated on the spot.
#
#     python train.py config/sudoku_mini.py                    # PUMA
#     python train.py config/sudoku_mini.py --method=mdm       # random masks, same budget
#
name = "sudoku_mini"
