# A task of reasoning-gym as bytes.
#
#     pip install reasoning-gym                        # beside requirements.txt
#     python data/gym/prepare.py mini_sudoku           # or another of its generators
#     python train.py config/gym.py --data=data/gym/mini_sudoku
out_dir = "out/gym"
task = "lab.own_text"
data = "data/gym/mini_sudoku"
test_examples = 256

method = "puma_plus"
k_schedule = [(0, 8)]
tau = 0.9

dim = 96
layers = 3
heads = 4
mlp = 288
theta = 100.0
tied = True
batch_size = 32
max_iters = 1200

eval_interval = 200
eval_reveal = 1
