"""Importing threads of LangGraph's: programs that both libraries run, and databases that LangGraph has written."""
