"""What a run did, to be read: a page for the browser, a PDF, ten lines of text."""
