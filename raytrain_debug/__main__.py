"""python -m raytrain_debug"""

import sys

from raytrain_debug.cli import main

if __name__ == "__main__":
    sys.exit(main())
