PYTHONPATH=/tmp/msgsx/next /work/wt/msgs/.venv/bin/python -m pytest -q -p no:langsmith_plugin -p no:cacheprovider "$@"
