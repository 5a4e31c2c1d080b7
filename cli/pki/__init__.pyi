from .arguments import print_json as print_json
from .inspect import printable as printable, problem_lines as problem_lines
