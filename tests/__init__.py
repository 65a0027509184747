"""The tests, by subject. What several folders use is in `helpers`."""
