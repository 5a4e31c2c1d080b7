from .arguments import print_json as print_json
from .inspect import finding_lines as finding_lines
