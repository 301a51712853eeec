"""Records in, pictures, tables and sentences out. Measures nothing."""
